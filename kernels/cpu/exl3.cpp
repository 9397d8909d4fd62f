// SPDX-License-Identifier: Apache-2.0
// EXL3 products, plain: tiles are decoded through a table of the codebook into a panel that stays
// in the first-level cache and serves every row of the pass.
#include "kernels/exl3.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/paths.h"

#include <array>
#include <cstring>

namespace quadrille::cpu {

namespace {

constexpr int64_t kPanel = 32;  // outputs decoded together: eight vectors of four accumulators

// panel (16, kPanel), first of the tile's 16 columns. The words of columns c and c + 8 are
// neighbours (docs of kernels/exl3.h), so all shifts are constants once the loop is unrolled.
template <int kBits>
void decode_tile(float* panel, const uint16_t* trellis, const float* weights) {
    constexpr int kWords = exl3::tile_words(kBits);
    std::array<uint32_t, kWords> word;
    std::memcpy(word.data(), trellis, sizeof word);
    uint32_t before = word[kWords - 1];
    for (int c = 0; c < 8; ++c) {
        std::array<uint32_t, kBits + 1> own;
        own[0] = before;
        std::memcpy(own.data() + 1, word.data() + c * kBits, kBits * sizeof(uint32_t));
        before = own[kBits];
#pragma GCC unroll 32
        for (int t = 0; t < 32; ++t) {
            const int first = t * kBits + kBits - 16 + 32;  // in `own`
            const uint64_t pair = uint64_t{own[static_cast<size_t>(first / 32)]} << 32 |
                                  own[static_cast<size_t>((first + 15) / 32)];
            const uint64_t state = pair >> (31 - (first + 15) % 32) & 0xffffu;
            panel[exl3::tile_row(t) * kPanel + exl3::tile_col(t) + c] = weights[state];
        }
    }
}

// acc (kPanel) += the sum over 128 inputs, from 0.
void multiply_panel(float* acc, const float* x, const float* panel) {
    std::array<Lanes4, kPanel / 4> part{};
    for (int64_t k = 0; k < exl3::kBlock; ++k) {
#pragma GCC unroll 8
        for (size_t q = 0; q < part.size(); ++q) {
            part[q] += x[k] * load4(panel + k * kPanel + 4 * static_cast<int64_t>(q));
        }
    }
    for (size_t i = 0; i < kPanel; ++i) acc[i] += part[i / 4][i % 4];
}

template <int kBits>
void block_of_bits(float* acc, const Exl3Block& block) {
    constexpr int64_t kTileWords = 2 * exl3::tile_words(kBits);
    alignas(64) std::array<float, exl3::kBlock * kPanel> panel;
    for (int64_t n = 0; n < exl3::kBlock; n += kPanel) {
        for (int64_t b = 0; b < block.blocks; ++b) {
            for (int64_t tile = 0; tile < 16; ++tile) {
                const int64_t tk = tile / 2;
                const int64_t tn = tile % 2;
                decode_tile<kBits>(panel.data() + tk * exl3::kTile * kPanel + tn * exl3::kTile,
                                   block.trellis + (b * 8 + tk) * block.trellis_stride +
                                       (n / exl3::kTile + tn) * kTileWords,
                                   block.weights);
            }
            for (int64_t r = 0; r < block.m; ++r) {
                multiply_panel(acc + r * exl3::kBlock + n,
                               block.x + r * block.x_stride + b * exl3::kBlock, panel.data());
            }
        }
    }
}

}  // namespace

std::vector<float> codebook_table(Codebook codebook) {
    std::vector<float> table(65536);
    for (uint32_t state = 0; state < table.size(); ++state) {
        table[state] = to_float(exl3::decode(codebook, state));
    }
    return table;
}

void exl3_block_plain(float* acc, const Exl3Block& block) {
    std::memset(acc, 0, static_cast<size_t>(block.m * exl3::kBlock) * sizeof(float));
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

void hadamard_plain(float* values, int64_t count) {
    for (int64_t group = 0; group < count; ++group, values += exl3::kBlock) {
        for (int64_t half = 1; half < exl3::kBlock; half *= 2) {
            for (int64_t first = 0; first < exl3::kBlock; first += 2 * half) {
                for (int64_t i = first; i < first + half; ++i) {
                    const float a = values[i];
                    const float b = values[i + half];
                    values[i] = a + b;
                    values[i + half] = a - b;
                }
            }
        }
        for (int64_t i = 0; i < exl3::kBlock; ++i) values[i] *= exl3::kHadamardScale;
    }
}

}  // namespace quadrille::cpu
