// SPDX-License-Identifier: Apache-2.0
// Sixteen: sixteen floats in the registers of the instruction set a file is compiled for (one of
// AVX-512, two of AVX2, four of any other). Everything has internal linkage, so that code of one
// set can never stand in for another's. Sums follow kernels/cpu/lanes.h: same lanes, no fused
// multiply-add.
#pragma once

#include "kernels/dtype.h"

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quadrille::cpu {
namespace {

#if defined(__AVX512F__)

struct Sixteen {
    __m512 all;
};

inline Sixteen zero() {
    return {_mm512_setzero_ps()};
}
inline Sixteen broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
inline Sixteen load(const float* from) {
    return {_mm512_loadu_ps(from)};
}
inline Sixteen load(const F16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline Sixteen load(const BF16* from) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store(float* to, Sixteen x) {
    _mm512_storeu_ps(to, x.all);
}
inline Sixteen operator+(Sixteen a, Sixteen b) {
    return {_mm512_add_ps(a.all, b.all)};
}
inline Sixteen operator*(Sixteen a, Sixteen b) {
    return {_mm512_mul_ps(a.all, b.all)};
}
inline __m256 fold_to_eight(Sixteen x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x.all), _mm512_extractf32x8_ps(x.all, 1));
}

#elif defined(__AVX2__)

struct Sixteen {
    __m256 low;
    __m256 high;
};

inline Sixteen zero() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Sixteen broadcast(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Sixteen load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline Sixteen load(const F16* from) {
    const auto* eight = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(eight)), _mm256_cvtph_ps(_mm_loadu_si128(eight + 1))};
}
inline __m256 widen(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}
inline Sixteen load(const BF16* from) {
    const auto* eight = reinterpret_cast<const __m128i*>(from);
    return {widen(_mm_loadu_si128(eight)), widen(_mm_loadu_si128(eight + 1))};
}
inline void store(float* to, Sixteen x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
inline Sixteen operator+(Sixteen a, Sixteen b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Sixteen operator*(Sixteen a, Sixteen b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline __m256 fold_to_eight(Sixteen x) {
    return _mm256_add_ps(x.low, x.high);
}

#else

using Four = float __attribute__((vector_size(16)));
// The same at addresses that are only float-aligned.
using LooseFour = float __attribute__((vector_size(16), aligned(4), may_alias));

struct Sixteen {
    Four part[4];
};

inline Sixteen zero() {
    return {};
}
inline Sixteen broadcast(float x) {
    const Four four = {x, x, x, x};
    return {{four, four, four, four}};
}
inline Sixteen load(const float* from) {
    const auto* four = reinterpret_cast<const LooseFour*>(from);
    return {{four[0], four[1], four[2], four[3]}};
}
template <class T>
inline Sixteen load(const T* from) {
    float wide[16];
    for (int i = 0; i < 16; ++i) wide[i] = to_float(from[i]);
    return load(wide);
}
inline void store(float* to, Sixteen x) {
    auto* four = reinterpret_cast<LooseFour*>(to);
    for (int i = 0; i < 4; ++i) four[i] = x.part[i];
}
inline Sixteen operator+(Sixteen a, Sixteen b) {
    return {{a.part[0] + b.part[0], a.part[1] + b.part[1], a.part[2] + b.part[2],
             a.part[3] + b.part[3]}};
}
inline Sixteen operator*(Sixteen a, Sixteen b) {
    return {{a.part[0] * b.part[0], a.part[1] * b.part[1], a.part[2] * b.part[2],
             a.part[3] * b.part[3]}};
}

#endif

// The first `count` < 16 elements, zeros behind them.
template <class T>
inline Sixteen load_some(const T* from, int64_t count) {
    T buffer[16] = {};
    std::memcpy(buffer, from, static_cast<size_t>(count) * sizeof(T));
    return load(buffer);
}

// In halves: 8, 4, 2, 1.
inline float fold(Sixteen x) {
#if defined(__AVX2__)
    const __m256 eight = fold_to_eight(x);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    const Four four = (x.part[0] + x.part[2]) + (x.part[1] + x.part[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

}  // namespace
}  // namespace quadrille::cpu
