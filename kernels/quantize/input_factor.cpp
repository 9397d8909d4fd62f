// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize/input_factor.h"

#include "kernels/error.h"
#include "kernels/parallel.h"
#include "kernels/quantize/cholesky.h"
#include "kernels/quantize/rotate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace quadrille {

namespace {

using exl3::kTile;
using quantize::Side;

constexpr double kNoInformation = 1e-20;  // mean of a diagonal
constexpr int kMostRetries = 10;

// (k_padded, k_padded), both triangles, padded channels zero.
std::vector<double> whole(const std::string& name, View<const float> hessian, int64_t k_padded) {
    std::vector<double> h(static_cast<size_t>(k_padded * k_padded), 0.0);
    for (int64_t i = 0; i < hessian.rows; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
            const auto value = static_cast<double>(hessian.row(i)[j]);
            if (!std::isfinite(value)) {
                throw Error(ErrorKind::input,
                            fmt::format("{}: Hessian element ({}, {}) is {}", name, i, j, value));
            }
            h[static_cast<size_t>(i * k_padded + j)] = value;
            h[static_cast<size_t>(j * k_padded + i)] = value;
        }
        if (hessian.row(i)[i] < 0) {
            throw Error(ErrorKind::input, fmt::format("{}: Hessian diagonal element {} is {}, "
                                                      "expected a sum of squares",
                                                      name, i, hessian.row(i)[i]));
        }
    }
    return h;
}

double mean_of_diagonal(const std::vector<double>& h, int64_t k, int64_t k_padded) {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += h[static_cast<size_t>(i * k_padded + i)];
    return sum / static_cast<double>(k);
}

// h = H diag(signs) h diag(signs) H.
void rotate(std::vector<double>& h, const std::vector<float>& signs, int32_t threads) {
    const auto k = std::ssize(signs);
    parallel_for(threads, k, [&](int64_t i) {
        double* row = h.data() + i * k;
        const auto sign = static_cast<double>(signs[static_cast<size_t>(i)]);
        for (int64_t j = 0; j < k; ++j) {
            row[j] *= sign * static_cast<double>(signs[static_cast<size_t>(j)]);
        }
        quantize::hadamard(row, k / exl3::kBlock, 1);
    });
    parallel_for(threads, k / exl3::kBlock, [&](int64_t block) {
        quantize::hadamard(h.data() + block * exl3::kBlock * k, 1, k);
    });
}

// Row blocks by the sum of their diagonal, ascending; equal ones in their own order.
std::vector<int32_t> order_of(const std::vector<double>& h, int64_t k) {
    std::vector<double> weight(static_cast<size_t>(k / kTile), 0.0);
    for (int64_t i = 0; i < k; ++i) {
        weight[static_cast<size_t>(i / kTile)] += h[static_cast<size_t>(i * k + i)];
    }
    std::vector<int32_t> order(weight.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return weight[static_cast<size_t>(a)] < weight[static_cast<size_t>(b)];
    });
    return order;
}

// The lower triangle of h with its blocks of 16 in another order, `damping` added to the diagonal.
std::vector<double> ordered(const std::vector<double>& h, const std::vector<int32_t>& order,
                            double damping, int32_t threads) {
    const int64_t k = std::ssize(order) * kTile;
    std::vector<double> out(h.size());
    parallel_for(threads, std::ssize(order), [&](int64_t block) {
        for (int64_t r = 0; r < kTile; ++r) {
            const double* from = h.data() + (order[static_cast<size_t>(block)] * kTile + r) * k;
            double* to = out.data() + (block * kTile + r) * k;
            for (int64_t other = 0; other <= block; ++other) {
                std::copy_n(from + order[static_cast<size_t>(other)] * kTile, kTile,
                            to + other * kTile);
            }
            to[block * kTile + r] += damping;
        }
    });
    return out;
}

// From H = C C^T: L's columns C[:, i] C[i, i]^-1 and D's block C[i, i] C[i, i]^T.
void split(InputFactor& factor, const std::vector<double>& c, int32_t threads) {
    const int64_t k = factor.k_padded;
    const int64_t blocks = k / kTile;
    factor.feedback.assign(static_cast<size_t>(blocks * k * kTile), 0.0f);
    factor.metric.assign(static_cast<size_t>(blocks * kTile * kTile), 0.0f);
    parallel_for(threads, blocks, [&](int64_t block) {
        const int64_t first = block * kTile;
        const auto own = [&](int64_t r, int64_t s) {
            return c[static_cast<size_t>((first + r) * k + first + s)];
        };
        for (int64_t r = 0; r < kTile; ++r) {
            for (int64_t s = 0; s < kTile; ++s) {
                double sum = 0;
                for (int64_t t = 0; t <= std::min(r, s); ++t) sum += own(r, t) * own(s, t);
                factor.metric[static_cast<size_t>((block * kTile + r) * kTile + s)] =
                    static_cast<float>(sum);
            }
        }
        for (int64_t row = first + kTile; row < k; ++row) {
            double x[kTile];
            for (int64_t s = kTile - 1; s >= 0; --s) {  // x C[i, i] = C[row, i]
                double sum = c[static_cast<size_t>(row * k + first + s)];
                for (int64_t t = s + 1; t < kTile; ++t) sum -= x[t] * own(t, s);
                x[s] = sum / own(s, s);
                factor.feedback[static_cast<size_t>((block * k + row) * kTile + s)] =
                    static_cast<float>(x[s]);
            }
        }
    });
}

// x (16) = b h^-1 with the symmetric h = c c^T, c (16, 16) lower.
void solve(double* x, const double* c) {
    for (int64_t i = 0; i < kTile; ++i) {
        for (int64_t j = 0; j < i; ++j) x[i] -= c[i * kTile + j] * x[j];
        x[i] /= c[i * kTile + i];
    }
    for (int64_t i = kTile - 1; i >= 0; --i) {
        for (int64_t j = i + 1; j < kTile; ++j) x[i] -= c[j * kTile + i] * x[j];
        x[i] /= c[i * kTile + i];
    }
}

// From H, its lower triangle: H[:, i] H[i, i]^-1 with H[i, i]'s rows 0, and H[i, i].
void prepare_sweeps(InputFactor& factor, const std::vector<double>& h, int32_t threads) {
    const int64_t k = factor.k_padded;
    const int64_t blocks = k / kTile;
    factor.sweep_feedback.assign(static_cast<size_t>(blocks * k * kTile), 0.0f);
    factor.sweep_metric.assign(static_cast<size_t>(blocks * kTile * kTile), 0.0f);
    const auto at = [&](int64_t i, int64_t j) {
        return h[static_cast<size_t>(std::max(i, j) * k + std::min(i, j))];
    };
    parallel_for(threads, blocks, [&](int64_t block) {
        const int64_t first = block * kTile;
        std::array<double, kTile * kTile> c{};
        for (int64_t r = 0; r < kTile; ++r) {
            for (int64_t s = 0; s < kTile; ++s) {
                factor.sweep_metric[static_cast<size_t>((block * kTile + r) * kTile + s)] =
                    static_cast<float>(at(first + r, first + s));
            }
            for (int64_t s = 0; s <= r; ++s) {
                double sum = at(first + r, first + s);
                for (int64_t t = 0; t < s; ++t) {
                    sum -= c[static_cast<size_t>(r * kTile + t)] *
                           c[static_cast<size_t>(s * kTile + t)];
                }
                c[static_cast<size_t>(r * kTile + s)] =
                    r == s ? std::sqrt(sum) : sum / c[static_cast<size_t>(s * kTile + s)];
            }
        }
        for (int64_t row = 0; row < k; ++row) {
            if (row / kTile == block) continue;
            std::array<double, kTile> x;
            for (int64_t s = 0; s < kTile; ++s) x[static_cast<size_t>(s)] = at(row, first + s);
            solve(x.data(), c.data());
            for (int64_t s = 0; s < kTile; ++s) {
                factor.sweep_feedback[static_cast<size_t>((block * k + row) * kTile + s)] =
                    static_cast<float>(x[static_cast<size_t>(s)]);
            }
        }
    });
}

}  // namespace

InputFactor plain_inputs(int64_t k, const FactorOptions& options) {
    require(k > 0, "inputs to quantize");
    InputFactor factor{.k = k, .k_padded = exl3::padded(k)};
    factor.signs = quantize::random_signs(options.seed, Side::inputs, factor.k_padded);
    factor.order.resize(static_cast<size_t>(factor.k_padded / kTile));
    std::iota(factor.order.begin(), factor.order.end(), 0);
    return factor;
}

InputFactor factor_inputs(const std::string& name, View<const float> hessian,
                          const FactorOptions& options) {
    require(hessian.rows == hessian.cols, "a Hessian is square");
    InputFactor factor = plain_inputs(hessian.rows, options);
    std::vector<double> h = whole(name, hessian, factor.k_padded);
    const double mean = mean_of_diagonal(h, factor.k, factor.k_padded);
    if (mean < kNoInformation) return factor;
    rotate(h, factor.signs, options.threads);
    factor.order = order_of(h, factor.k_padded);
    factor.damping = options.damping;
    for (int retry = 0; retry <= kMostRetries; ++retry) {
        std::vector<double> c = ordered(h, factor.order, factor.damping * mean, options.threads);
        const std::vector<double> damped = options.sweeps ? c : std::vector<double>();
        if (quantize::cholesky(c.data(), factor.k_padded, options.threads)) {
            split(factor, c, options.threads);
            if (options.sweeps) prepare_sweeps(factor, damped, options.threads);
            factor.has_hessian = true;
            return factor;
        }
        factor.damping += 2 * std::max(options.damping, 0.005);
    }
    throw Error(ErrorKind::input,
                fmt::format("{}: the Hessian is not positive definite even with {:.3g} of its "
                            "diagonal's mean added",
                            name, factor.damping));
}

}  // namespace quadrille
