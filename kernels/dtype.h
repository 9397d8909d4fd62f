// SPDX-License-Identifier: Apache-2.0
// Element types of tensors and the two 16-bit floats, with exact conversions.
#pragma once

#include <bit>
#include <cstdint>

namespace quadrille {

enum class Dtype : uint8_t {
    f32,
    f16,
    bf16,
    f64,
    i8,
    u8,
    i16,
    i32,
    i64,
    boolean,
    f8_e4m3,
    f8_e5m2
};

constexpr int64_t size_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::i8:
        case Dtype::u8:
        case Dtype::boolean:
        case Dtype::f8_e4m3:
        case Dtype::f8_e5m2:
            return 1;
        case Dtype::f16:
        case Dtype::bf16:
        case Dtype::i16:
            return 2;
        case Dtype::f32:
        case Dtype::i32:
            return 4;
        case Dtype::f64:
        case Dtype::i64:
            return 8;
    }
    return 0;
}

// Names as in safetensors headers ("F32", "BF16", …).
const char* name(Dtype dtype);

struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};

constexpr float to_float(float value) {
    return value;
}

constexpr float to_float(BF16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr float to_float(F16 value) {  // without branches: loops over it become vectors
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
    const uint32_t magnitude = value.bits & 0x7fffu;
    // Shifting the exponent in and scaling by 2^112 is exact for normals and subnormals alike.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    // Inf and nan keep their mantissa.
    const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign | special);
}

// Round to nearest, ties to even; overflow becomes infinity.
constexpr F16 to_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // subnormal: let the adder round at 2^-24
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        const uint32_t rounded = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
        return {static_cast<uint16_t>(sign | rounded)};
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
    return {static_cast<uint16_t>(sign | rounded >> 13)};
}

constexpr BF16 to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

}  // namespace quadrille
