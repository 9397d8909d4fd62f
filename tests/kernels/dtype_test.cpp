// SPDX-License-Identifier: Apache-2.0
// The 16-bit floats, every value of them.
#include "kernels/dtype.h"

#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quadrille::test {
namespace {

// By the definition of the format, in fp64.
double f16_value(uint32_t bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 10 & 31u);
    const double mantissa = bits & 0x3ffu;
    if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Dtype, EveryF16AndBf16WidensExactlyAndRoundsBack) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const F16 half{static_cast<uint16_t>(bits)};
        const BF16 brain{static_cast<uint16_t>(bits)};
        const double expected = f16_value(bits);
        const float found = to_float(half);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(found)) << bits;
            EXPECT_TRUE(std::isnan(to_float(to_f16(found)))) << bits;
        } else {
            EXPECT_EQ(double{found}, expected) << bits;
            EXPECT_EQ(std::signbit(found), (bits & 0x8000u) != 0) << bits;
            EXPECT_EQ(to_f16(found).bits, bits);
        }
        const float wide = to_float(brain);
        EXPECT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
        EXPECT_TRUE(std::isnan(wide) || to_bf16(wide).bits == bits) << bits;
    }
}

TEST(Dtype, RoundsToNearestTiesToEven) {
    // Between every two neighbours: just below, at, and just above the middle.
    for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
        const float low = to_float(F16{static_cast<uint16_t>(bits)});
        const float high = to_float(F16{static_cast<uint16_t>(bits + 1)});
        const float middle = low + (high - low) / 2;
        EXPECT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, bits);
        EXPECT_EQ(to_f16(middle).bits, bits + bits % 2);
        EXPECT_EQ(to_f16(std::nextafter(middle, INFINITY)).bits, bits + 1);
        EXPECT_EQ(to_f16(-middle).bits, 0x8000u | (bits + bits % 2));
    }
    EXPECT_EQ(to_f16(65519.99f).bits, 0x7bffu);
    EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00u);
    EXPECT_EQ(to_f16(std::numeric_limits<float>::denorm_min()).bits, 0u);
    EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80u);  // a tie, to even
    EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82u);
    EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80u);
}

}  // namespace
}  // namespace quadrille::test
