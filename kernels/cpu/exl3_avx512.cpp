// SPDX-License-Identifier: Apache-2.0
// EXL3 products with AVX-512 (F BW DQ VL VBMI VNNI), the bits of kernels/cpu/exl3.cpp. A vector
// holds one input of a tile for its 16 outputs. Compiled for that machine only: nothing here may
// instantiate code that other files share.
//
// Extraction: the state of a position is a 16-bit window of the stream. One byte permute brings, to
// each lane, 32 bits that hold the windows of four consecutive positions of its column (two from 5
// bits on); a multishift per position then yields the zero-extended states. Positions of a column
// come in groups q of four: inputs 2q, 2q+1, 2q+8, 2q+9.
#include "kernels/cpu/exl3_panel.h"
#include "kernels/cpu/paths.h"
#include "kernels/exl3.h"

#include <cstring>
#include <immintrin.h>

namespace quadrille::cpu {

namespace {

constexpr int64_t kTile = exl3::kTile;
constexpr int64_t kBlock = exl3::kBlock;

template <int kBits>
struct Extraction {
    static constexpr int kSymbols = kBits <= 4 ? 4 : 2;  // positions per window
    static constexpr int kParts = 4 / kSymbols;          // windows per group
    static constexpr int kWindows = 4 * kParts;
    static constexpr int kBytes = 32 * kBits;  // of a tile

    alignas(64) uint8_t index[kWindows][64];  // byte of the tile for each byte of the window
    alignas(64) uint8_t shift[4][64];         // bits of the qword for each byte of the state
    uint64_t behind[kWindows];  // bytes of the window beyond the first 128 of the tile

    constexpr Extraction() : index(), shift(), behind() {
        for (int lane = 0; lane < 16; ++lane) {
            const int half = lane / 8;
            for (int q = 0; q < 4; ++q) {
                for (int p = 0; p < kParts; ++p) {
                    const int end = 32 * kBits * (lane % 8) + 8 * kBits * q + end_in_group(half, p);
                    for (int i = 0; i < 4; ++i) {
                        const int byte = ((end + 7) / 8 - 1 - i + kBytes) % kBytes;
                        index[q * kParts + p][4 * lane + i] = static_cast<uint8_t>(byte ^ 3);
                        behind[q * kParts + p] |= static_cast<uint64_t>(byte / 128)
                                                  << (4 * lane + i);
                    }
                }
            }
            for (int j = 0; j < 4; ++j) {
                const int past = (8 - end_in_group(half, j / kSymbols) % 8) % 8;
                const int bits = (kSymbols - 1 - j % kSymbols) * kBits + past + lane % 2 * 32;
                shift[j][4 * lane] = static_cast<uint8_t>(bits);
                shift[j][4 * lane + 1] = static_cast<uint8_t>(bits + 8);
            }
        }
    }

    // Last bit + 1 of window p of a column half, from the start of its group.
    static constexpr int end_in_group(int half, int p) {
        return 4 * kBits * half + kSymbols * kBits * (p + 1);
    }
};

template <int kBits>
constexpr Extraction<kBits> kExtraction{};

template <int kBits>
struct Windows {
    __m512i at[Extraction<kBits>::kWindows];
};

// 64 bytes, or the 32 that a tile of odd `kBits` ends with.
template <int kBits, int kPart>
inline __m512i load_part(const uint8_t* tile) {
    if constexpr (kBits == 2 * kPart + 1) {
        return _mm512_castsi256_si512(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 64 * kPart)));
    } else {
        return _mm512_loadu_si512(tile + 64 * kPart);
    }
}

template <int kBits>
inline Windows<kBits> load_windows(const uint16_t* trellis) {
    using Table = Extraction<kBits>;
    const auto* tile = reinterpret_cast<const uint8_t*>(trellis);
    Windows<kBits> windows;
    const __m512i a = load_part<kBits, 0>(tile);
    __m512i b = a;
    __m512i c = a;
    __m512i d = a;
    if constexpr (kBits > 2) b = load_part<kBits, 1>(tile);
    if constexpr (kBits > 4) c = load_part<kBits, 2>(tile);
    if constexpr (kBits > 6) d = load_part<kBits, 3>(tile);
#pragma GCC unroll 8
    for (int w = 0; w < Table::kWindows; ++w) {
        const __m512i index = _mm512_load_si512(kExtraction<kBits>.index[w]);
        if constexpr (kBits <= 2) {
            windows.at[w] = _mm512_permutexvar_epi8(index, a);
        } else {
            const __m512i low = _mm512_permutex2var_epi8(a, index, b);
            const __mmask64 high = kExtraction<kBits>.behind[w];
            if constexpr (kBits <= 4) {
                windows.at[w] = low;
            } else if constexpr (kBits <= 6) {
                windows.at[w] = _mm512_mask_permutexvar_epi8(low, high, index, c);
            } else {
                windows.at[w] =
                    _mm512_mask_mov_epi8(low, high, _mm512_permutex2var_epi8(c, index, d));
            }
        }
    }
    return windows;
}

// States of input `row` of the tile.
template <int kBits>
inline __m512i states(const Windows<kBits>& windows, int row) {
    using Table = Extraction<kBits>;
    const int j = row % 2 + 2 * (row / 8);
    const int w = row % 8 / 2 * Table::kParts + j / Table::kSymbols;
    return _mm512_maskz_multishift_epi64_epi8(
        0x3333333333333333u, _mm512_load_si512(kExtraction<kBits>.shift[j]), windows.at[w]);
}

// To the nearest fp16, ties to even: exact for multiples of 2^-18 below 4, which all codes are.
// (x + 2^13 x) keeps 11 bits of x beside 2^13 x, whose last bits are zeros.
inline __m512 round_to_f16(__m512 x) {
    const __m512 both = _mm512_mul_ps(x, _mm512_set1_ps(8193.0f));
    return _mm512_add_ps(both, _mm512_sub_ps(x, both));
}

template <Codebook kCodebook>
inline __m512 decode(__m512i state) {
    if constexpr (kCodebook == Codebook::mul1) {
        // 2^23 + the sum of the product's bytes, as a float.
        const __m512i product =
            _mm512_mullo_epi32(state, _mm512_set1_epi32(static_cast<int>(exl3::kMul1Multiplier)));
        const __m512 sum = _mm512_castsi512_ps(
            _mm512_dpbusd_epi32(_mm512_set1_epi32(0x4b000000), product, _mm512_set1_epi8(1)));
        constexpr float kOffset = (1024.0f - 0x1p23f) * exl3::kMul1Scale + exl3::kMul1Bias;
        static_assert(kOffset == -56771.453125f);
        return round_to_f16(
            _mm512_fmadd_ps(sum, _mm512_set1_ps(exl3::kMul1Scale), _mm512_set1_ps(kOffset)));
    } else {
        __m512i product;
        if constexpr (kCodebook == Codebook::mcg) {
            product = _mm512_mullo_epi32(state,
                                         _mm512_set1_epi32(static_cast<int>(exl3::kMcgMultiplier)));
        } else {
            product = _mm512_add_epi32(_mm512_mullo_epi32(state, _mm512_set1_epi32(89226354)),
                                       _mm512_set1_epi32(64248484));
        }
        // Both fp16 halves as fp32: exponents are 12..15, so the three top bits of the fp32
        // exponent are constants like the reference's own mask and xor.
        const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x81ffe000u));
        const __m512i flip = _mm512_set1_epi32(0x3f6c0000);
        constexpr int kAndXor = 0x6a;  // (a & b) ^ c
        const __m512i high = _mm512_srai_epi32(product, 3);
        const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(product, 16), 3);
        return round_to_f16(_mm512_add_ps(
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32(high, mask, flip, kAndXor)),
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32(low, mask, flip, kAndXor))));
    }
}

// Tiles of one column of tiles, `stride` apart: 128 inputs of 16 outputs. `use(k, weights)` gets
// the inputs in order. The tiles of the next 128 inputs are fetched meanwhile.
template <int kBits, Codebook kCodebook, class Use>
inline void decode_column(const uint16_t* trellis, int64_t stride, const Use& use) {
    for (int64_t tile = 0; tile < 8; ++tile, trellis += stride) {
        const char* next = reinterpret_cast<const char*>(trellis + 8 * stride);
#pragma GCC unroll 4
        for (int line = 0; line < (kBits + 1) / 2; ++line) {
            _mm_prefetch(next + 64 * line, _MM_HINT_T0);
        }
        const Windows<kBits> windows = load_windows<kBits>(trellis);
#pragma GCC unroll 16
        for (int row = 0; row < kTile; ++row) {
            use(tile * kTile + row, decode<kCodebook>(states<kBits>(windows, row)));
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
                __m512 part = _mm512_setzero_ps();
                decode_column<kBits, kCodebook>(
                    trellis, block.trellis_stride, [&](int64_t k, __m512 w) {
                        part = _mm512_add_ps(part, _mm512_mul_ps(_mm512_set1_ps(x[k]), w));
                    });
                _mm512_storeu_ps(acc + n, _mm512_add_ps(_mm512_loadu_ps(acc + n), part));
            } else {
                decode_column<kBits, kCodebook>(
                    trellis, block.trellis_stride,
                    [&](int64_t k, __m512 w) { _mm512_store_ps(panel + k * kTile, w); });
                multiply_rows<8>(acc + n, x, block.x_stride, block.m, panel);
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

// One stage inside a vector: lanes of `minus` hold b of a pair (a, b), `other` is the partner.
inline __m512 butterfly(__m512 x, __m512 other, __mmask16 minus) {
    return _mm512_mask_sub_ps(_mm512_add_ps(other, x), minus, other, x);
}

inline __m512 butterflies_inside(__m512 x) {
    x = butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    x = butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    x = butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    return butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

}  // namespace

void exl3_block_avx512(float* acc, const Exl3Block& block) {
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

void hadamard_avx512(float* values, int64_t count) {
    const __m512 scale = _mm512_set1_ps(exl3::kHadamardScale);
    for (int64_t group = 0; group < count; ++group, values += kBlock) {
        __m512 x[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) x[i] = butterflies_inside(_mm512_loadu_ps(values + 16 * i));
#pragma GCC unroll 3
        for (int half = 1; half < 8; half *= 2) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                if ((i & half) != 0) continue;
                const __m512 a = x[i];
                const __m512 b = x[i + half];
                x[i] = _mm512_add_ps(a, b);
                x[i + half] = _mm512_sub_ps(a, b);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) _mm512_storeu_ps(values + 16 * i, _mm512_mul_ps(x[i], scale));
    }
}

}  // namespace quadrille::cpu
