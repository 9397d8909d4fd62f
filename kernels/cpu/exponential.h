// SPDX-License-Identifier: Apache-2.0
// exp and sigmoid in fp32, written so that a loop over them becomes vector code on every machine
// and gives the same bits there: no call, no table, no fused multiply-add. exp is within 1 unit in
// the last place of the true value between 2^-125 (below: 0) and overflow
// (infinity). Internal linkage: each instruction set's file has its own copy.
#pragma once

#include <bit>
#include <cstdint>

namespace quadrille::cpu {

// exp(x) = 2^n exp(r), n the integer nearest to x / ln 2, |r| <= ln 2 / 2.
static inline float exp_of(float x) {
    constexpr float kLowest = -86.643394f;  // exp of it is 2^-125
    constexpr float kHighest = 88.72283f;   // exp of it is the largest float
    // Adding 1.5 * 2^23 leaves n in the low bits of the sum; the exponent is made from them.
    constexpr float kRound = 12582912.0f;
    const float shifted = x * 1.44269504f + kRound;
    const float n = shifted - kRound;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r +
                      4.1665795894e-2f) *
                         r +
                     1.6666665459e-1f) *
                        r +
                    5.0000001201e-1f;
    const float exp_r = (p * (r * r) + r) + 1.0f;
    // 2^n as 2 * 2^(n - 1), because n may be 128.
    const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 126u) << 23);
    const float normal = exp_r * power * 2.0f;
    const float bounded = x > kHighest ? __builtin_inff() : normal;
    return x < kLowest ? 0.0f : bounded;
}

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp_of(-x));
}

}  // namespace quadrille::cpu
