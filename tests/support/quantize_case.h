// SPDX-License-Identifier: Apache-2.0
// Matrices to quantize, and errors of the results computed without the quantizer's own sums.
#pragma once

#include "kernels/exl3_decode.h"
#include "kernels/quantize/quantize_matrix.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille::test {

struct QuantizeCase {
    int64_t n = 0;
    int64_t k = 0;
    std::vector<float> weights{};  // (n, k)
    std::vector<float> hessian{};  // (k, k)

    View<const float> weights_view() const { return {weights.data(), n, k}; }
    View<const float> hessian_view() const { return {hessian.data(), k, k}; }
};

// X^T X / rows of x (rows, k).
inline std::vector<float> gram(const std::vector<float>& x, int64_t k) {
    const int64_t rows = std::ssize(x) / k;
    std::vector<float> h(static_cast<size_t>(k * k), 0.0f);
    for (int64_t row = 0; row < rows; ++row) {
        const float* values = x.data() + row * k;
        for (int64_t i = 0; i < k; ++i) {
            float* to = h.data() + i * k;
            const float scaled = values[i] / static_cast<float>(rows);
            for (int64_t j = 0; j < k; ++j) to[j] += scaled * values[j];
        }
    }
    return h;
}

// W = 0.02 N(0,1), X = N(0,1) (I + 0.3 N(0,1)/sqrt(k)), 4096 rows: as the reference's errors at
// 1024 x 1024 were measured.
inline QuantizeCase anchor_case(uint64_t seed, int64_t n, int64_t k) {
    constexpr int64_t kRows = 4096;
    Random random(seed);
    QuantizeCase made{.n = n, .k = k};
    made.weights = random.normals(n * k, 0.02f);
    const std::vector<float> mix =
        random.normals(k * k, static_cast<float>(0.3 / std::sqrt(static_cast<double>(k))));
    const std::vector<float> plain = random.normals(kRows * k);
    std::vector<float> x = plain;
    for (int64_t row = 0; row < kRows; ++row) {
        float* to = x.data() + row * k;
        for (int64_t i = 0; i < k; ++i) {
            const float value = plain.data()[row * k + i];
            const float* from = mix.data() + i * k;
            for (int64_t j = 0; j < k; ++j) to[j] += value * from[j];
        }
    }
    made.hessian = gram(x, k);
    return made;
}

// tr(E^T H E) / tr(W^T H W), E = the matrix in its original basis - W, H as it is.
inline double hessian_error(const QuantizeCase& made, const Matrix& matrix) {
    std::vector<float> result(made.weights.size());
    exl3_dequantize(result.data(), matrix);
    const auto energy = [&](const float* v, std::vector<float>& product) {
        std::fill(product.begin(), product.end(), 0.0f);
        for (int64_t i = 0; i < made.k; ++i) {
            const float* row = made.hessian.data() + i * made.k;
            for (int64_t j = 0; j < made.k; ++j) product.data()[j] += v[i] * row[j];
        }
        double sum = 0;
        for (int64_t j = 0; j < made.k; ++j) {
            sum += static_cast<double>(product.data()[j]) * static_cast<double>(v[j]);
        }
        return sum;
    };
    double error = 0;
    double whole = 0;
    std::vector<float> product(static_cast<size_t>(made.k));
    std::vector<float> difference(product.size());
    for (int64_t n = 0; n < made.n; ++n) {
        const float* wanted = made.weights.data() + n * made.k;
        for (int64_t k = 0; k < made.k; ++k) {
            difference.data()[k] = result.data()[n * made.k + k] - wanted[k];
        }
        error += energy(difference.data(), product);
        whole += energy(wanted, product);
    }
    return error / whole;
}

inline QuantizedMatrix quantize_case(TrellisEncoder& encoder, const QuantizeCase& made,
                                     const QuantizeOptions& options, uint64_t seed) {
    const InputFactor factor =
        factor_inputs("inputs", made.hessian_view(),
                      {.seed = seed, .sweeps = options.sweeps > 0, .threads = options.threads});
    return quantize_matrix(
        encoder,
        {.name = "matrix", .weights = made.weights_view(), .inputs = &factor, .seed = seed},
        options);
}

}  // namespace quadrille::test
