// SPDX-License-Identifier: Apache-2.0
// Regularised: a weight matrix on its way to codes: scaled per channel, signs applied, rotated on
// both sides, so that its values are nearly Gaussian with one standard deviation.
#pragma once

#include "kernels/dtype.h"
#include "kernels/quantize/input_factor.h"
#include "kernels/view.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille::quantize {

struct Regularised {
    int64_t k = 0;  // padded
    int64_t n = 0;  // padded
    // H diag(1/suh) W^T diag(1/svh) H, (k, n), with suh and svh as below.
    std::vector<float> values{};
    std::vector<float> suh{};  // (k) before `apply_scale`: not yet rounded
    std::vector<F16> svh{};    // (n) 0 for channels that are 0
    bool is_zero = false;      // every weight is 0
};

// weights (n, k), checked; before the global scale. output_scales false: |svh| is one number.
// Throws Error{input} with `name` for weights that are not finite.
Regularised regularise(const std::string& name, View<const float> weights,
                       const InputFactor& inputs, uint64_t seed, bool output_scales,
                       int32_t threads);

// Multiplies the values by `scale` and divides suh by it, rounds suh to fp16 and corrects the
// values for what rounding changed.
void apply_scale(Regularised& matrix, double scale, int32_t threads);

// Sums of squares of (the matrix of `codes` - W) and of W, original basis; codes (k, n) are lost.
struct SquaredError {
    double error = 0;
    double weights = 0;
};
SquaredError squared_error(std::vector<float>& codes, const Regularised& matrix,
                           View<const float> weights, int32_t threads);

}  // namespace quadrille::quantize
