// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize/regularize.h"

#include "kernels/error.h"
#include "kernels/parallel.h"
#include "kernels/quantize/rotate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace quadrille::quantize {

namespace {

constexpr int64_t kBlock = exl3::kBlock;
constexpr double kZero = 1e-30;                // a rms below it is 0
constexpr double kCodebookScale = 1.24371088;  // standard deviation of the 3inst codebook
constexpr double kRmsOfZeros = 0.1;            // rows and columns of zeros are divided by it

// Root mean square of each output channel. Throws Error{input}.
std::vector<double> output_rms(const std::string& name, View<const float> weights,
                               int32_t threads) {
    std::vector<double> rms(static_cast<size_t>(weights.rows));
    parallel_for(threads, weights.rows, [&](int64_t n) {
        double sum = 0;
        for (int64_t k = 0; k < weights.cols; ++k) {
            const auto value = static_cast<double>(weights.row(n)[k]);
            if (!std::isfinite(value)) {
                throw Error(ErrorKind::input,
                            fmt::format("{}: weight ({}, {}) is {}", name, n, k, value));
            }
            sum += value * value;
        }
        rms[static_cast<size_t>(n)] = std::sqrt(sum / static_cast<double>(weights.cols));
    });
    return rms;
}

// The power of two that svh gives to suh, which would be about `mean`: fp16 has its full precision
// from 2^-14 on only.
double balance(double mean) {
    int exponent = 0;
    std::frexp(mean, &exponent);
    if (exponent < -8) return std::ldexp(1.0, -std::min(-8 - exponent, 12));
    if (exponent > 12) return std::ldexp(1.0, std::min(exponent - 12, 12));
    return 1.0;
}

std::vector<F16> output_scales(const std::vector<double>& rms, const std::vector<float>& signs,
                               bool scaled) {
    double mean = 0;
    for (const double r : rms) mean += r / static_cast<double>(rms.size());
    const double common = mean > kZero ? balance(mean) : 1.0;
    std::vector<F16> svh(signs.size());
    for (size_t n = 0; n < rms.size(); ++n) {
        if (rms[n] < kZero) continue;  // stays 0
        const double size = scaled ? rms[n] / mean * common : common;
        // A channel beyond fp16's largest number is divided by that.
        svh[n] = to_f16(static_cast<float>(std::min(size, 65504.0)) * signs[n]);
    }
    return svh;
}

// values (k, n) = W^T / svh, rotated over n; a block of 128 outputs.
void fill_block(Regularised& matrix, View<const float> weights, int64_t block) {
    const int64_t end = std::min((block + 1) * kBlock, weights.rows);
    for (int64_t n = block * kBlock; n < end; ++n) {
        const auto scale = to_float(matrix.svh[static_cast<size_t>(n)]);
        if (scale == 0.0f) continue;
        for (int64_t k = 0; k < weights.cols; ++k) {
            matrix.values[static_cast<size_t>(k * matrix.n + n)] = weights.row(n)[k] / scale;
        }
    }
    for (int64_t k = 0; k < weights.cols; ++k) {
        hadamard(matrix.values.data() + k * matrix.n + block * kBlock, 1, 1);
    }
}

void scale_row(float* row, int64_t count, double factor) {
    for (int64_t i = 0; i < count; ++i) {
        row[i] = static_cast<float>(static_cast<double>(row[i]) * factor);
    }
}

}  // namespace

Regularised regularise(const std::string& name, View<const float> weights,
                       const InputFactor& inputs, uint64_t seed, bool scaled, int32_t threads) {
    Regularised matrix{.k = inputs.k_padded, .n = exl3::padded(weights.rows)};
    const std::vector<double> rms = output_rms(name, weights, threads);
    matrix.is_zero = std::all_of(rms.begin(), rms.end(), [](double r) { return r < kZero; });
    matrix.svh = output_scales(rms, random_signs(seed, Side::outputs, matrix.n), scaled);
    matrix.values.assign(static_cast<size_t>(matrix.k * matrix.n), 0.0f);
    parallel_for(threads, matrix.n / kBlock,
                 [&](int64_t block) { fill_block(matrix, weights, block); });
    matrix.suh.resize(static_cast<size_t>(matrix.k));
    parallel_for(threads, matrix.k / kBlock, [&](int64_t block) {
        for (int64_t k = block * kBlock; k < (block + 1) * kBlock; ++k) {
            float* row = matrix.values.data() + k * matrix.n;
            double sum = 0;
            for (int64_t n = 0; n < matrix.n; ++n) {
                sum += static_cast<double>(row[n]) * static_cast<double>(row[n]);
            }
            const double mean = std::sqrt(sum / static_cast<double>(matrix.n));
            const double size = (mean < kZero ? kRmsOfZeros : mean) / kCodebookScale;
            const auto signed_size =
                size * static_cast<double>(inputs.signs[static_cast<size_t>(k)]);
            matrix.suh[static_cast<size_t>(k)] = static_cast<float>(signed_size);
            scale_row(row, matrix.n, 1.0 / signed_size);
        }
        hadamard(matrix.values.data() + block * kBlock * matrix.n, 1, matrix.n);
    });
    return matrix;
}

void apply_scale(Regularised& matrix, double scale, int32_t threads) {
    parallel_for(threads, matrix.k / kBlock, [&](int64_t block) {
        float* first = matrix.values.data() + block * kBlock * matrix.n;
        hadamard(first, 1, matrix.n);
        for (int64_t i = 0; i < kBlock; ++i) {
            float& suh = matrix.suh[static_cast<size_t>(block * kBlock + i)];
            const auto wanted = static_cast<float>(static_cast<double>(suh) / scale);
            const float size = std::clamp(std::abs(wanted), 0x1p-24f, 65504.0f);
            const float rounded = to_float(to_f16(std::copysign(size, wanted)));
            scale_row(first + i * matrix.n, matrix.n,
                      static_cast<double>(suh) / static_cast<double>(rounded));
            suh = rounded;
        }
        hadamard(first, 1, matrix.n);
    });
}

SquaredError squared_error(std::vector<float>& codes, const Regularised& matrix,
                           View<const float> weights, int32_t threads) {
    parallel_for(threads, matrix.k / kBlock, [&](int64_t block) {
        float* first = codes.data() + block * kBlock * matrix.n;
        hadamard(first, 1, matrix.n);
        for (int64_t i = 0; i < kBlock; ++i) {
            float* row = first + i * matrix.n;
            const float suh = matrix.suh[static_cast<size_t>(block * kBlock + i)];
            hadamard(row, matrix.n / kBlock, 1);
            for (int64_t n = 0; n < matrix.n; ++n) {
                row[n] *= suh * to_float(matrix.svh[static_cast<size_t>(n)]);
            }
        }
    });
    std::vector<SquaredError> sums(static_cast<size_t>(matrix.n / kBlock));
    parallel_for(threads, std::ssize(sums), [&](int64_t block) {
        SquaredError& sum = sums[static_cast<size_t>(block)];
        const int64_t end = std::min((block + 1) * kBlock, weights.rows);
        for (int64_t n = block * kBlock; n < end; ++n) {
            for (int64_t k = 0; k < weights.cols; ++k) {
                const auto wanted = static_cast<double>(weights.row(n)[k]);
                const auto got = static_cast<double>(codes[static_cast<size_t>(k * matrix.n + n)]);
                sum.error += (got - wanted) * (got - wanted);
                sum.weights += wanted * wanted;
            }
        }
    });
    SquaredError all;
    for (const SquaredError& sum : sums) {
        all.error += sum.error;
        all.weights += sum.weights;
    }
    return all;
}

}  // namespace quadrille::quantize
