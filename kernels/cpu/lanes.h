// SPDX-License-Identifier: Apache-2.0
// The one arithmetic of long fp32 sums on the CPU. Term i of a chunk of kChunk goes to lane
// i % kLanes; a chunk's lanes are added to the total's lanes, and the sixteen lanes are folded in
// halves. The order depends on the length alone, and no multiply-add is fused, so every path
// (plain, AVX2, AVX-512) gives the same bits. Chunks keep the error of a long sum near that of 16
// terms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace quadrille::cpu {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kChunk = 256;

// Four floats: what every x86-64 and AArch64 machine holds in one register.
using Lanes4 = float __attribute__((vector_size(16)));
// The same for addresses that are only float-aligned.
using Lanes4Loose = float __attribute__((vector_size(16), aligned(4), may_alias));

inline Lanes4 load4(const float* from) {
    return *reinterpret_cast<const Lanes4Loose*>(from);
}

inline float fold(const std::array<Lanes4, 4>& lanes) {
    const Lanes4 four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Sum over i < count of term(i, lane vector of four consecutive terms); `terms4(i)` gives terms
// i..i+3, `term(i)` one.
template <class Terms4, class Term>
float lane_sum(int64_t count, const Terms4& terms4, const Term& term) {
    std::array<Lanes4, 4> total{};
    for (int64_t first = 0; first < count; first += kChunk) {
        const int64_t last = first + kChunk < count ? first + kChunk : count;
        std::array<Lanes4, 4> part{};
        int64_t i = first;
        for (; i + kLanes <= last; i += kLanes) {
            part[0] += terms4(i);
            part[1] += terms4(i + 4);
            part[2] += terms4(i + 8);
            part[3] += terms4(i + 12);
        }
        for (int64_t lane = 0; i + lane < last; ++lane) {
            part[static_cast<size_t>(lane / 4)][lane % 4] += term(i + lane);
        }
        for (size_t q = 0; q < 4; ++q) total[q] += part[q];
    }
    return fold(total);
}

// sum a[i] * b[i]
inline float dot(const float* a, const float* b, int64_t count) {
    return lane_sum(
        count, [=](int64_t i) { return load4(a + i) * load4(b + i); },
        [=](int64_t i) { return a[i] * b[i]; });
}

// sum a[i]
inline float sum(const float* a, int64_t count) {
    return lane_sum(
        count, [=](int64_t i) { return load4(a + i); }, [=](int64_t i) { return a[i]; });
}

// sum (a[i] - centre)^2
inline float sum_of_squares(const float* a, int64_t count, float centre = 0.0f) {
    return lane_sum(
        count,
        [=](int64_t i) {
            const Lanes4 d = load4(a + i) - centre;
            return d * d;
        },
        [=](int64_t i) { return (a[i] - centre) * (a[i] - centre); });
}

}  // namespace quadrille::cpu
