// SPDX-License-Identifier: Apache-2.0
// The EXL3 format's single home: bit packing, tile order, codebooks, Hadamard scale. Everything is
// constexpr and used by host and device code alike. Source: the format as exllamav3 1.4.1 reads it.
//
// A tile holds 16x16 weights as 256 symbols of `bits` bits, most significant bit first; stream bit
// p is bit 31 - p%32 of the tile's little-endian 32-bit word p/32. The code of position t is the
// 16-bit *state* that ends with symbol t, modulo the tile (tail-biting).
#pragma once

#include "kernels/dtype.h"
#include "kernels/host_device.h"
#include "kernels/matrix.h"

#include <bit>
#include <cstdint>

namespace quadrille::exl3 {

inline constexpr int kTile = 16;       // a tile is kTile x kTile weights
inline constexpr int kTileSize = 256;  // weights in a tile
inline constexpr int kBlock = 128;     // Hadamard block; every stored dimension is a multiple
inline constexpr float kHadamardScale = 0.088388347648f;  // 1/sqrt(128) in fp32, bits 0x3DB504F3

inline constexpr uint32_t k3instMultiplier = 89226354u;
inline constexpr uint32_t k3instAddend = 64248484u;
inline constexpr uint32_t kMcgMultiplier = 0xCBAC1FEDu;   // value of a `mcg` marker
inline constexpr uint32_t kMul1Multiplier = 0x83DCD12Du;  // value of a `mul1` marker

// Channels rounded up to whole Hadamard blocks, as they are stored.
constexpr int64_t padded(int64_t channels) {
    return (channels + kBlock - 1) / kBlock * kBlock;
}

// Bytes of the codes of n_padded x k_padded weights.
constexpr int64_t trellis_bytes(int64_t n_padded, int64_t k_padded, int bits) {
    return n_padded * k_padded / 8 * bits;
}

// 32-bit words of one tile.
QUADRILLE_HOST_DEVICE constexpr int tile_words(int bits) {
    return 8 * bits;
}

// Position t of the stream <-> row (input channel) and column (output channel) in the tile: the
// register order of two B fragments of mma.m16n8k16.
QUADRILLE_HOST_DEVICE constexpr int tile_row(int t) {
    return 2 * ((t >> 3) & 3) + (t & 1) + 8 * ((t >> 1) & 1);
}
QUADRILLE_HOST_DEVICE constexpr int tile_col(int t) {
    return (t >> 5) + 8 * ((t >> 2) & 1);
}
QUADRILLE_HOST_DEVICE constexpr int tile_position(int row, int col) {
    return 32 * (col & 7) + 8 * ((row & 7) >> 1) + (row & 1) + 2 * (row >> 3) + 4 * (col >> 3);
}

// The 16-bit state of position t; `words` are the tile's 8*bits words.
QUADRILLE_HOST_DEVICE constexpr uint32_t tile_state(const uint32_t* words, int bits, int t) {
    const int count = tile_words(bits);
    const int first = t * bits + bits - 16 + 256 * bits;  // first bit, kept non-negative
    const int last = first + 15;
    const uint64_t high = words[(first / 32) % count];
    const uint64_t low = words[(last / 32) % count];
    const int shift = 31 - last % 32;
    return static_cast<uint32_t>((high << 32 | low) >> shift) & 0xffffu;
}

// 3inst and mcg: the product's two masked halves, as fp16 bit patterns (low, high); the weight is
// their fp16 sum.
QUADRILLE_HOST_DEVICE constexpr uint32_t codebook_pair(Codebook codebook, uint32_t state) {
    const uint32_t x = codebook == Codebook::mcg ? state * kMcgMultiplier
                                                 : state * k3instMultiplier + k3instAddend;
    return (x & 0x8fff8fffu) ^ 0x3b603b60u;
}

// mul1: the sum of the product's four bytes (0..1020).
QUADRILLE_HOST_DEVICE constexpr uint32_t mul1_byte_sum(uint32_t state) {
    const uint32_t x = state * kMul1Multiplier;
    return (x & 0xffu) + (x >> 8 & 0xffu) + (x >> 16 & 0xffu) + (x >> 24);
}
inline constexpr float kMul1Scale = 0.00676727294921875f;  // fp16 0x1EEE
inline constexpr float kMul1Bias = -10.3828125f;           // fp16 0xC931

// The one value a decoded weight has on every backend; results depend on it.
inline constexpr const char* kDecodedForm = "fp16";

// Weight of a state, rounded to fp16 as the reference decodes it. The products and sums below are
// exact in fp32 (11 + 11 significant bits), so the single rounding is the one to fp16.
constexpr F16 decode(Codebook codebook, uint32_t state) {
    if (codebook == Codebook::mul1) {
        const double sum = 1024.0 + mul1_byte_sum(state);
        return to_f16(static_cast<float>(sum * static_cast<double>(kMul1Scale) +
                                         static_cast<double>(kMul1Bias)));
    }
    const uint32_t pair = codebook_pair(codebook, state);
    return to_f16(to_float(F16{static_cast<uint16_t>(pair)}) +
                  to_float(F16{static_cast<uint16_t>(pair >> 16)}));
}

}  // namespace quadrille::exl3
