// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/fp8.h"

#include "io/checkpoint/module_names.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace quadrille {
namespace {

constexpr int kMantissa = 3;  // bits
constexpr int kBias = 7;

const std::array<float, 256>& fp8_table() {
    static const std::array<float, 256> table = [] {
        std::array<float, 256> values{};
        for (size_t i = 0; i < values.size(); ++i) values[i] = fp8_value(static_cast<uint8_t>(i));
        return values;
    }();
    return table;
}

int64_t blocks(int64_t channels) {
    return (channels + kFp8Block - 1) / kFp8Block;
}

bool is_float(Dtype dtype) {
    return dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32;
}

template <class T>
void widen(const std::byte* from, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
        T value;
        std::memcpy(&value, from + i * sizeof value, sizeof value);
        out[i] = to_float(value);
    }
}

}  // namespace

float fp8_value(uint8_t byte) {
    const int exponent = byte >> kMantissa & 0xf;
    const int mantissa = byte & 0x7;
    const float sign = (byte & 0x80) != 0 ? -1.0f : 1.0f;
    if ((byte & 0x7f) == 0x7f) return std::nanf("");
    if (exponent == 0)
        return sign * std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa);
    return sign * std::ldexp(static_cast<float>(mantissa + 8), exponent - kBias - kMantissa);
}

Fp8Weight find_fp8(const Checkpoint& checkpoint, const std::string& module, const Tensor& weight,
                   int64_t n, int64_t k) {
    if (weight.shape != std::vector<int64_t>{n, k}) {
        checkpoint.refuse(weight, fmt::format("F8_E4M3 [{}, {}]", n, k));
    }
    const std::string expected = fmt::format("F32 [{}, {}]", blocks(n), blocks(k));
    const Tensor& scales =
        checkpoint.get(tensor_name(module, TensorPart::weight_scale_inv), expected);
    if (scales.dtype != Dtype::f32 || scales.shape != std::vector<int64_t>{blocks(n), blocks(k)}) {
        checkpoint.refuse(scales, expected);
    }
    checkpoint.check_finite(scales, 0, scales.elements());
    return {.weight = &weight, .scales = &scales, .n = n, .k = k};
}

void read_fp8(const Fp8Weight& weight, int64_t row, int64_t col, std::span<float> out) {
    const std::array<float, 256>& table = fp8_table();
    const std::byte* from = weight.weight->bytes.data() + row * weight.k + col;
    const std::byte* scales = weight.scales->bytes.data() + row / kFp8Block * blocks(weight.k) * 4;
    for (size_t i = 0; i < out.size(); ++i) {
        float scale;
        std::memcpy(&scale, scales + (col + static_cast<int64_t>(i)) / kFp8Block * 4, sizeof scale);
        out[i] = table[static_cast<size_t>(from[i])] * scale;
    }
}

NativeMatrix::NativeMatrix(const Checkpoint& checkpoint, const std::string& module, int64_t n,
                           int64_t k)
    : checkpoint_(checkpoint),
      weight_(&checkpoint.get(tensor_name(module, TensorPart::weight),
                              fmt::format("BF16, F16, F32 or F8_E4M3 [{}, {}]", n, k))),
      n_(n),
      k_(k) {
    if (weight_->dtype == Dtype::f8_e4m3) {
        fp8_ = find_fp8(checkpoint, module, *weight_, n, k);
    } else if (!is_float(weight_->dtype) || weight_->shape != std::vector<int64_t>{n, k}) {
        checkpoint.refuse(*weight_, fmt::format("BF16, F16, F32 or F8_E4M3 [{}, {}]", n, k));
    }
}

void NativeMatrix::read(std::span<float> out) const {
    require(std::ssize(out) == n_ * k_, "room for a whole matrix");
    const std::byte* const bytes = weight_->bytes.data();
    if (fp8_.weight != nullptr) {
        for (int64_t row = 0; row < n_; ++row) {
            read_fp8(fp8_, row, 0,
                     out.subspan(static_cast<size_t>(row * k_), static_cast<size_t>(k_)));
        }
        const int64_t at = find_non_finite(std::as_bytes(out).data(), Dtype::f32, n_ * k_);
        if (at >= 0) checkpoint_.refuse_non_finite(*weight_, at);
        return;
    }
    checkpoint_.check_finite(*weight_, 0, n_ * k_);
    if (weight_->dtype == Dtype::f32) widen<float>(bytes, out);
    if (weight_->dtype == Dtype::bf16) widen<BF16>(bytes, out);
    if (weight_->dtype == Dtype::f16) widen<F16>(bytes, out);
}

}  // namespace quadrille
