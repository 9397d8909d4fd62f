// SPDX-License-Identifier: Apache-2.0
// The loops of TrellisPaths over the registers of the instruction set a file is compiled for: 16
// lanes of AVX-512, 8 of AVX2, 1 elsewhere. Every lane does what the plain one does, so all give
// the same bits. Everything has internal linkage, so that code of one set can never stand in for
// another's.
#pragma once

#include "kernels/cpu/trellis_paths.h"
#include "kernels/trellis_search.h"

#include <bit>
#include <cmath>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quadrille::cpu {
namespace {

#if defined(__AVX512F__)

using Lanes = __m512;
inline constexpr int kLanes = 16;

inline Lanes fill(float x) {
    return _mm512_set1_ps(x);
}
inline Lanes load(const float* from) {
    return _mm512_loadu_ps(from);
}
inline void store(float* to, Lanes x) {
    _mm512_storeu_ps(to, x);
}
inline Lanes difference(Lanes a, Lanes b) {
    return _mm512_sub_ps(a, b);
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline Lanes smaller(Lanes a, Lanes b) {
    return _mm512_min_ps(a, b);
}
// x with the bits of `mask` replaced by those of `tag`.
inline Lanes tagged(Lanes x, int mask, int tag) {
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(x), _mm512_set1_epi32(mask), _mm512_set1_epi32(tag), 0xBA));
}
inline void store_tags(uint8_t* to, Lanes x, int mask) {
    const __m512i tags = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(mask));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(tags));
}
// Lane i: from[i >> bits].
template <int kBits>
inline Lanes spread(const float* from) {
    if constexpr (kBits >= 4) return fill(*from);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(lane, kBits), load(from));
}

#elif defined(__AVX2__)

using Lanes = __m256;
inline constexpr int kLanes = 8;

inline Lanes fill(float x) {
    return _mm256_set1_ps(x);
}
inline Lanes load(const float* from) {
    return _mm256_loadu_ps(from);
}
inline void store(float* to, Lanes x) {
    _mm256_storeu_ps(to, x);
}
inline Lanes difference(Lanes a, Lanes b) {
    return _mm256_sub_ps(a, b);
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline Lanes smaller(Lanes a, Lanes b) {
    return _mm256_min_ps(a, b);
}
inline Lanes tagged(Lanes x, int mask, int tag) {
    const Lanes kept = _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_set1_epi32(mask)), x);
    return _mm256_or_ps(kept, _mm256_castsi256_ps(_mm256_set1_epi32(tag)));
}
inline void store_tags(uint8_t* to, Lanes x, int mask) {
    const __m256i tags = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(mask));
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(tags), _mm256_extracti128_si256(tags, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
template <int kBits>
inline Lanes spread(const float* from) {
    if constexpr (kBits >= 3) return fill(*from);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_permutevar8x32_ps(load(from), _mm256_srli_epi32(lane, kBits));
}

#else

using Lanes = float;
inline constexpr int kLanes = 1;

inline Lanes fill(float x) {
    return x;
}
inline Lanes load(const float* from) {
    return *from;
}
inline void store(float* to, Lanes x) {
    *to = x;
}
inline Lanes difference(Lanes a, Lanes b) {
    return a - b;
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
    return std::fma(a, b, c);
}
inline Lanes smaller(Lanes a, Lanes b) {
    return a < b ? a : b;
}
inline Lanes tagged(Lanes x, int mask, int tag) {
    return std::bit_cast<float>((std::bit_cast<int>(x) & ~mask) | tag);
}
inline void store_tags(uint8_t* to, Lanes x, int mask) {
    *to = static_cast<uint8_t>(std::bit_cast<int>(x) & mask);
}
template <int kBits>
inline Lanes spread(const float* from) {
    return *from;
}

#endif

// One position: costs of all nodes behind it.
template <int kBits>
inline void trellis_step(float* to, uint8_t* choice, const float* from, const float* table,
                         float value) {
    constexpr int kNodes = trellis::nodes(kBits);
    constexpr int kSymbols = 1 << kBits;
    const Lanes x = fill(value);
    for (int out = 0; out < kNodes; out += kLanes) {
        const float* values = table + out / 16 * kSymbols * 16 + out % 16;
        Lanes best = fill(trellis::kUnreached * 2);
        for (int symbol = 0; symbol < kSymbols; ++symbol) {
            const Lanes d = difference(load(values + symbol * 16), x);
            const Lanes cost =
                fused(d, d, spread<kBits>(from + ((symbol * kNodes + out) >> kBits)));
            best = smaller(best, tagged(cost, kSymbols - 1, symbol));
        }
        store(to + out, best);
        store_tags(choice + out, best, kSymbols - 1);
    }
}

template <int kBits>
void trellis_steps_of(const TrellisSteps& steps) {
    float* from = steps.cost;
    float* to = steps.spare;
    static_assert(exl3::kTileSize % 2 == 0);  // the last costs lie where the first did
    for (int i = 0; i < exl3::kTileSize; ++i) {
        const int at = (steps.first + i) % exl3::kTileSize;
        trellis_step<kBits>(to, steps.choice + int64_t{at} * trellis::nodes(kBits), from,
                            steps.table, steps.values[at]);
        std::swap(from, to);
    }
}

void trellis_steps(const TrellisSteps& steps) {
    constexpr void (*kBy[])(const TrellisSteps&) = {
        trellis_steps_of<1>, trellis_steps_of<2>, trellis_steps_of<3>, trellis_steps_of<4>,
        trellis_steps_of<5>, trellis_steps_of<6>, trellis_steps_of<7>, trellis_steps_of<8>};
    kBy[steps.bits - 1](steps);
}

void feed_back(float* rows, const float* factor, const float* errors, int64_t count) {
    constexpr int kTile = exl3::kTile;
    for (int col = 0; col < kTile; col += kLanes) {
        Lanes sum[kTile];
        for (int r = 0; r < kTile; ++r) sum[r] = load(rows + r * kTile + col);
        for (int64_t j = 0; j < count; ++j) {
            const Lanes error = load(errors + j * kTile + col);
            for (int r = 0; r < kTile; ++r) {
                sum[r] = fused(fill(factor[j * kTile + r]), error, sum[r]);
            }
        }
        for (int r = 0; r < kTile; ++r) store(rows + r * kTile + col, sum[r]);
    }
}

constexpr TrellisPaths trellis_loops(const char* name) {
    return {.name = name, .steps = trellis_steps, .feed_back = feed_back};
}

}  // namespace
}  // namespace quadrille::cpu
