// SPDX-License-Identifier: Apache-2.0
// Products with native weights (bf16, f16, f32). Weights are exact; activations enter as two terms
// (bf16 + bf16: 16 significant bits, or tf32 + tf32 beside f16 and f32 weights: 21), sums are fp32.
//
// One arithmetic per row: the inputs of a segment are cut into eight spans of equal length (a
// multiple of 64), each one chain of MMAs over ascending inputs from zero; the spans are added in
// order, then come the tree over the segments and the bias.
#pragma once

#include "kernels/cuda/exl3/exl3_product.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/view.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace quadrille::cuda {

struct NativeProduct {
    Matrix matrix{};             // of all rows, unless `table` is given
    const Mlp* table = nullptr;  // experts: the matrix of a tile is that of its expert
    int32_t member = 0;          // 0 gate, 1 up, 2 down; the grid's z is added

    int32_t m = 0;
    const RowTile* tiles = nullptr;
    const int32_t* tile_count = nullptr;
    // The input of position p is row p of x, or with `order` row order[p] / slots.
    const float* x = nullptr;
    int64_t x_stride = 0;
    const int32_t* order = nullptr;
    int32_t slots = 1;
    // Fragments made by split_rows (bf16, tiles of 64 rows).
    const uint4* fragments = nullptr;

    // Result row of a position: itself, or with `scatter` order[p].
    bool scatter = false;
    ProductOut out;
};

// The most rows the streaming kernel takes at once; beyond it bf16 weights want split fragments.
inline constexpr int32_t kStreamRows = 16;
inline constexpr int32_t kNativeTileRows = 64;
inline constexpr int64_t kNativeTiledColumns = 1024;  // fewer are streamed, unless rows are many
inline constexpr int64_t kNativeManyRows = 256;       // from here on 64 columns are tiled
inline constexpr int64_t kNativeHeadColumns = 65536;  // so many are tiled, however few the rows
inline constexpr int32_t kNativeGroupRows = 16;       // of a fragment: tiles begin at whole ones

QUADRILLE_HOST_DEVICE constexpr int64_t native_span(int64_t width) {
    return ((width + 7) / 8 + 63) / 64 * 64;
}

// Products with matrices of one dtype and k that read nothing another writes, in one launch.
inline constexpr int32_t kNativeGroup = 8;
struct NativeMember {
    const void* weights = nullptr;
    const float* bias = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    float* out = nullptr;
    int64_t out_stride = 0;
    int32_t n = 0;
    int32_t first_tile = 0;  // its column tiles of 16 among those of all members
    int32_t end_tile = 0;
};
struct NativeGroup {
    NativeMember members[kNativeGroup];
    int32_t count = 0;
    int32_t tiles = 0;  // of 16 columns, of all members
    int32_t k = 0;
    int32_t m = 0;

    // True where a product of this k and m may join.
    bool takes(const Matrix& matrix, View<const float> in) const {
        return count == 0 || (count < kNativeGroup && k == matrix.k && m == in.rows);
    }
    void add(const Matrix& matrix, View<float> out, View<const float> in);
};
// True where this product may join a group: one segment, whole 16-byte loads.
bool native_groups(const Matrix& w, View<const float> in);
void native_group(const NativeGroup& group, Dtype dtype, int32_t tile_rows, int32_t processors,
                  LaunchStream stream);

// Streams the weights past up to 16 rows a tile: bound by memory. n: the most outputs.
void native_stream(const NativeProduct& product, Dtype dtype, int64_t n, int32_t tiles,
                   int32_t tile_rows, int32_t members, int32_t processors, LaunchStream stream);

// From fragments, which `native_fragments` allows; a matrix of several segments only with
// out.by_segment. tiles: of experts, else of kNativeTileRows of the rows.
void native_tiled(const NativeProduct& product, int64_t n, int32_t tiles, int32_t members,
                  KernelSet& kernels, LaunchStream stream);

// bf16 that can be copied 16 bytes at a time, and segments begin at multiples of 64 inputs.
bool native_fragments(const Matrix& w);

// Two-term fragments of m rows (or of the tiles of `product`), k inputs padded to 64: per group of
// 16 rows and 32 inputs, 32 lanes of four A operands: high and low terms of 16 inputs, twice.
void split_rows(uint4* fragments, const NativeProduct& product, int64_t k, int32_t tiles,
                LaunchStream stream);
constexpr int64_t split_size(int64_t positions, int64_t k) {
    return (positions + kNativeGroupRows - 1) / kNativeGroupRows * ((k + 63) / 64 * 2) * 128;
}

}  // namespace quadrille::cuda
