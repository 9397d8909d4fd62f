// SPDX-License-Identifier: Apache-2.0
// Launchers that several ops share. A launcher requires what it assumes, launches, and waits for
// nothing.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/exl3/exl3_product.h"
#include "kernels/cuda/handles.h"

#include <cuda_runtime.h>

namespace quadrille::cuda {

// True: four numbers at a time may be loaded of rows that lie `stride` apart from x on.
inline bool loads_four(const float* x, int64_t stride) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && stride % 4 == 0;
}

// rows.cu
// Throws Error{device} where this build holds no code for the current device.
void check_image();
// bias (n) or nullptr, added after the tree.
void tree_sum(View<float> out, const float* parts, int32_t count, int64_t part_stride,
              const float* bias, LaunchStream stream);

// moe.cu: groups the pairs row * topk + slot of `ids` by expert. order (capacity positions): the
// pair at a position, -1 between experts; tiles of at most tile_rows positions and their count,
// behind them tiles of expert -1.
// Ids outside [0, experts) belong to nobody.
struct Grouping {
    RowTile* tiles = nullptr;
    int32_t* tile_count = nullptr;
    int32_t* order = nullptr;
    int32_t align = 8;       // an expert's positions begin at a multiple of it, of 8 at least
    int64_t capacity = 0;    // grouped_positions(...)
    int32_t most_tiles = 0;  // grouped_tiles(...)
};
int64_t grouped_positions(int64_t pairs, int32_t experts, int32_t align);
int32_t grouped_tiles(int64_t pairs, int32_t experts, int32_t tile_rows);
void group_pairs(const Grouping& grouping, View<const int32_t> ids, int32_t experts,
                 int32_t tile_rows, LaunchStream stream);
// out (m, n): Backend::moe's sums. by_pair (pairs * segments, n), shared (segments, m, n) or
// nullptr, the first element of both at the first column of out.
struct Combination {
    View<const int32_t> ids{};
    View<const float> weights{};
    int32_t experts = 0;
    int32_t segments = 1;
    const float* by_pair = nullptr;
    int64_t pair_stride = 0;  // from a pair's segment to the next
    const float* shared = nullptr;
    int64_t shared_stride = 0;          // from a row to the next
    int64_t shared_segment_stride = 0;  // from a segment to the next
    // All but by_pair was complete before the kernel before this one could end: what it follows
    // waited before it let this one start.
    bool early = false;
};
void combine(View<float> out, const Combination& parts, LaunchStream stream);
// gate (positions of the tiles, width) = swiglu(gate, up), rows `stride` apart.
void swiglu_tiles(float* gate, const float* up, int64_t stride, const Mlp* table,
                  const Grouping& grouping, float limit, LaunchStream stream);

}  // namespace quadrille::cuda
