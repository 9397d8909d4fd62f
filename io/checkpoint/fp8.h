// SPDX-License-Identifier: Apache-2.0
// FP8 weights with a scale a block: MODULE.weight F8_E4M3 (n, k) and MODULE.weight_scale_inv F32
// (ceil(n/128), ceil(k/128)), by which the elements of a block of 128 x 128 are multiplied, as
// DeepSeek-V3's releases and GLM-5.3-Flash's FP8 release store them. Also any native matrix as f32.
#pragma once

#include "io/checkpoint/safetensors.h"

#include <cstdint>
#include <span>
#include <string>

namespace quadrille {

inline constexpr int64_t kFp8Block = 128;

// An FP8 weight of a module and its scales; both checked.
struct Fp8Weight {
    const Tensor* weight = nullptr;
    const Tensor* scales = nullptr;
    int64_t n = 0;
    int64_t k = 0;
};
// Error{input}: `weight` has another shape, or its scales are missing, of another shape or not
// finite.
Fp8Weight find_fp8(const Checkpoint& checkpoint, const std::string& module, const Tensor& weight,
                   int64_t n, int64_t k);

// Elements [col, col + out.size()) of a row. NaN where the weight has one.
void read_fp8(const Fp8Weight& weight, int64_t row, int64_t col, std::span<float> out);

// Value of an F8_E4M3 byte: 4 bits of exponent (bias 7), 3 of mantissa, no infinities, 0x7f NaN.
float fp8_value(uint8_t byte);

// A native (n, k) matrix of a module, MODULE.weight of BF16, F16, F32 or FP8, as f32.
class NativeMatrix {
  public:
    // Error{input} naming tensor, expected and found; Checkpoint outlives this.
    NativeMatrix(const Checkpoint& checkpoint, const std::string& module, int64_t n, int64_t k);
    // out (n * k), row by row. Error{input} for the first element that is infinite or NaN.
    void read(std::span<float> out) const;

  private:
    const Checkpoint& checkpoint_;
    const Tensor* weight_;
    Fp8Weight fp8_;
    int64_t n_;
    int64_t k_;
};

}  // namespace quadrille
