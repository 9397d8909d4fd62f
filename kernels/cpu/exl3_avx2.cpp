// SPDX-License-Identifier: Apache-2.0
// EXL3 products with AVX2 (and FMA, F16C), the bits of kernels/cpu/exl3.cpp. A vector holds one
// input of a tile for its outputs 0..7 or 8..15: a tile's words are gathered so that lane c has
// those of columns c and c + 8, and every state is the same shift of all lanes. Compiled for that
// machine only: nothing here may instantiate code that other files share.
#include "kernels/cpu/exl3_panel.h"
#include "kernels/cpu/paths.h"
#include "kernels/exl3.h"

#include <cstring>
#include <immintrin.h>

namespace quadrille::cpu {

namespace {

constexpr int64_t kTile = exl3::kTile;
constexpr int64_t kBlock = exl3::kBlock;

// at[1 + i]: word i of each column; at[0]: the word before them.
template <int kBits>
struct Columns {
    __m256i at[kBits + 1];
};

template <int kBits>
inline Columns<kBits> load_columns(const uint16_t* trellis) {
    const auto* words = reinterpret_cast<const int*>(trellis);
    const __m256i columns = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i index = _mm256_mullo_epi32(columns, _mm256_set1_epi32(kBits));
    Columns<kBits> own;
#pragma GCC unroll 8
    for (int i = 0; i < kBits; ++i) own.at[i + 1] = _mm256_i32gather_epi32(words + i, index, 4);
    own.at[0] =
        _mm256_permutevar8x32_epi32(own.at[kBits], _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6));
    return own;
}

// States of position t (0..31) of every column: t = 8q + j with inputs 2q, 2q+1, 2q+8, 2q+9 of
// column c, then of column c + 8.
template <int kBits>
inline __m256i states(const Columns<kBits>& own, int t) {
    const int first = t * kBits + kBits - 16 + 32;
    const int last = first + 15;
    const int shift = 31 - last % 32;
    __m256i window = _mm256_srli_epi32(own.at[last / 32], shift);
    if (first / 32 != last / 32) {
        window = _mm256_or_si256(window, _mm256_slli_epi32(own.at[first / 32], 32 - shift));
    } else if (shift == 16) {
        return window;
    }
    return _mm256_and_si256(window, _mm256_set1_epi32(0xffff));
}

// As in exl3_avx512.cpp: to the nearest fp16, ties to even.
inline __m256 round_to_f16(__m256 x) {
    const __m256 both = _mm256_mul_ps(x, _mm256_set1_ps(8193.0f));
    return _mm256_add_ps(both, _mm256_sub_ps(x, both));
}

template <Codebook kCodebook>
inline __m256 decode(__m256i state) {
    if constexpr (kCodebook == Codebook::mul1) {
        const __m256i product =
            _mm256_mullo_epi32(state, _mm256_set1_epi32(static_cast<int>(exl3::kMul1Multiplier)));
        const __m256i pairs = _mm256_maddubs_epi16(product, _mm256_set1_epi8(1));
        const __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        constexpr float kOffset = 1024.0f * exl3::kMul1Scale + exl3::kMul1Bias;
        static_assert(kOffset == -3.453125f);
        return round_to_f16(
            _mm256_fmadd_ps(sum, _mm256_set1_ps(exl3::kMul1Scale), _mm256_set1_ps(kOffset)));
    } else {
        __m256i product;
        if constexpr (kCodebook == Codebook::mcg) {
            product = _mm256_mullo_epi32(state,
                                         _mm256_set1_epi32(static_cast<int>(exl3::kMcgMultiplier)));
        } else {
            product = _mm256_add_epi32(_mm256_mullo_epi32(state, _mm256_set1_epi32(89226354)),
                                       _mm256_set1_epi32(64248484));
        }
        const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x81ffe000u));
        const __m256i flip = _mm256_set1_epi32(0x3f6c0000);
        const __m256i high = _mm256_srai_epi32(product, 3);
        const __m256i low = _mm256_srai_epi32(_mm256_slli_epi32(product, 16), 3);
        return round_to_f16(_mm256_add_ps(
            _mm256_castsi256_ps(_mm256_xor_si256(_mm256_and_si256(high, mask), flip)),
            _mm256_castsi256_ps(_mm256_xor_si256(_mm256_and_si256(low, mask), flip))));
    }
}

// As in exl3_avx512.cpp: `use(k, weights)` gets the 128 inputs of 16 outputs in order.
template <int kBits, Codebook kCodebook, class Use>
inline void decode_column(const uint16_t* trellis, int64_t stride, const Use& use) {
    for (int64_t tile = 0; tile < 8; ++tile, trellis += stride) {
        const char* next = reinterpret_cast<const char*>(trellis + 8 * stride);
#pragma GCC unroll 4
        for (int line = 0; line < (kBits + 1) / 2; ++line) {
            _mm_prefetch(next + 64 * line, _MM_HINT_T0);
        }
        const Columns<kBits> own = load_columns<kBits>(trellis);
#pragma GCC unroll 16
        for (int row = 0; row < kTile; ++row) {
            const int t = 8 * (row % 8 / 2) + row % 2 + 2 * (row / 8);
            use(tile * kTile + row, Sixteen{decode<kCodebook>(states<kBits>(own, t)),
                                            decode<kCodebook>(states<kBits>(own, t + 4))});
        }
    }
}

template <int kBits, Codebook kCodebook>
void block_of(float* acc, const Exl3Block& block) {
    alignas(64) float panel[kBlock * kTile];
    for (int64_t b = 0; b < block.blocks; ++b) {
        const float* x = block.x + b * kBlock;
        const uint16_t* trellis = block.trellis + b * 8 * block.trellis_stride;
        for (int64_t n = 0; n < kBlock; n += kTile, trellis += kTile * kBits) {
            if (block.m == 1) {
                Sixteen part = zero();
                decode_column<kBits, kCodebook>(
                    trellis, block.trellis_stride,
                    [&](int64_t k, Sixteen w) { part = part + broadcast(x[k]) * w; });
                store(acc + n, load(acc + n) + part);
            } else {
                decode_column<kBits, kCodebook>(
                    trellis, block.trellis_stride,
                    [&](int64_t k, Sixteen w) { store(panel + k * kTile, w); });
                multiply_rows<4>(acc + n, x, block.x_stride, block.m, panel);
            }
        }
    }
}

template <int kBits>
void block_of_bits(float* acc, const Exl3Block& block) {
    switch (block.codebook) {
        case Codebook::three_inst:
            return block_of<kBits, Codebook::three_inst>(acc, block);
        case Codebook::mcg:
            return block_of<kBits, Codebook::mcg>(acc, block);
        case Codebook::mul1:
            return block_of<kBits, Codebook::mul1>(acc, block);
    }
}

// (a + b, a - b) of neighbours `other`; `sign` is -0 in the lanes that hold b.
inline __m256 butterfly(__m256 x, __m256 other, __m256 sign) {
    return _mm256_add_ps(other, _mm256_xor_ps(x, sign));
}

inline __m256 butterflies_inside(__m256 x) {
    const float p = 0.0f;
    const float n = -0.0f;
    x = butterfly(x, _mm256_permute_ps(x, 0xb1), _mm256_setr_ps(p, n, p, n, p, n, p, n));
    x = butterfly(x, _mm256_permute_ps(x, 0x4e), _mm256_setr_ps(p, p, n, n, p, p, n, n));
    return butterfly(x, _mm256_permute2f128_ps(x, x, 1), _mm256_setr_ps(p, p, p, p, n, n, n, n));
}

}  // namespace

void exl3_block_avx2(float* acc, const Exl3Block& block) {
    std::memset(acc, 0, static_cast<size_t>(block.m * kBlock) * sizeof(float));
    switch (block.bits) {
        case 1:
            return block_of_bits<1>(acc, block);
        case 2:
            return block_of_bits<2>(acc, block);
        case 3:
            return block_of_bits<3>(acc, block);
        case 4:
            return block_of_bits<4>(acc, block);
        case 5:
            return block_of_bits<5>(acc, block);
        case 6:
            return block_of_bits<6>(acc, block);
        case 7:
            return block_of_bits<7>(acc, block);
        default:
            return block_of_bits<8>(acc, block);
    }
}

void hadamard_avx2(float* values, int64_t count) {
    const __m256 scale = _mm256_set1_ps(exl3::kHadamardScale);
    for (int64_t group = 0; group < count; ++group, values += kBlock) {
        __m256 x[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) x[i] = butterflies_inside(_mm256_loadu_ps(values + 8 * i));
#pragma GCC unroll 4
        for (int half = 1; half < 16; half *= 2) {
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) {
                if ((i & half) != 0) continue;
                const __m256 a = x[i];
                const __m256 b = x[i + half];
                x[i] = _mm256_add_ps(a, b);
                x[i + half] = _mm256_sub_ps(a, b);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm256_storeu_ps(values + 8 * i, _mm256_mul_ps(x[i], scale));
    }
}

}  // namespace quadrille::cpu
