// SPDX-License-Identifier: Apache-2.0
// What surrounds the products of the experts: the rows of each expert, and the sum over slots and
// segments. Where two rows of one expert come to lie is a race, what they compute is not: a row's
// arithmetic does not depend on its position.
#include "kernels/cuda/handles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kGroupThreads = 1024;
constexpr int kThreads = 256;

__device__ int32_t padded(int32_t count) {
    return (count + 7) / 8 * 8;
}

// One block. Shared: rows, first position and first tile of every expert.
__global__ void __launch_bounds__(kGroupThreads)
    group_pairs_kernel(Grouping out, View<const int32_t> ids, int32_t experts, int32_t tile_rows) {
    extern __shared__ int32_t shared[];
    int32_t* rows = shared;
    int32_t* position = shared + experts;
    int32_t* tile = shared + 2 * experts;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t e = thread; e < experts; e += kGroupThreads) rows[e] = 0;
    for (int64_t p = thread; p < out.capacity; p += kGroupThreads) out.order[p] = -1;
    __syncthreads();
    const int64_t pairs = ids.rows * ids.cols;
    for (int64_t pair = thread; pair < pairs; pair += kGroupThreads) {
        const int32_t e = ids.data[pair / ids.cols * ids.stride + pair % ids.cols];
        if (e >= 0 && e < experts) atomicAdd(&rows[e], 1);
    }
    __syncthreads();
    if (thread < 32) {
        // Running sums, 32 experts at a time.
        int32_t positions = 0;
        int32_t tiles = 0;
        for (int32_t first = 0; first < experts; first += 32) {
            const int32_t e = first + thread;
            const int32_t count = e < experts ? rows[e] : 0;
            int32_t to_position = padded(count);
            int32_t to_tile = (count + tile_rows - 1) / tile_rows;
#pragma unroll
            for (int stride = 1; stride < 32; stride *= 2) {
                const int32_t p = __shfl_up_sync(0xffffffffu, to_position, stride);
                const int32_t t = __shfl_up_sync(0xffffffffu, to_tile, stride);
                if (thread >= stride) {
                    to_position += p;
                    to_tile += t;
                }
            }
            if (e < experts) {
                position[e] = positions + to_position - padded(count);
                tile[e] = tiles + to_tile - (count + tile_rows - 1) / tile_rows;
            }
            positions += __shfl_sync(0xffffffffu, to_position, 31);
            tiles += __shfl_sync(0xffffffffu, to_tile, 31);
        }
        if (thread == 0) *out.tile_count = tiles;
    }
    __syncthreads();
    for (int32_t e = thread; e < experts; e += kGroupThreads) {
        for (int32_t r = 0; r < rows[e]; r += tile_rows) {
            out.tiles[tile[e] + r / tile_rows] = {e, position[e] + r, min(tile_rows, rows[e] - r)};
        }
    }
    __syncthreads();
    for (int64_t pair = thread; pair < pairs; pair += kGroupThreads) {
        const int32_t e = ids.data[pair / ids.cols * ids.stride + pair % ids.cols];
        if (e < 0 || e >= experts) continue;
        out.order[atomicAdd(&position[e], 1)] = static_cast<int32_t>(pair);
    }
}

__global__ void __launch_bounds__(kThreads)
    combine_kernel(View<float> out, const __grid_constant__ Combination in) {
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const int32_t* id = in.ids.data + r * in.ids.stride;
        const float* weight = in.weights.data + r * in.weights.stride;
        float tree[2] = {0.0f, 0.0f};
        for (int32_t s = 0; s < in.segments; ++s) {
            float sum = 0.0f;
            for (int64_t slot = 0; slot < in.ids.cols; ++slot) {
                if (id[slot] < 0 || id[slot] >= in.experts) continue;
                const int64_t pair = r * in.ids.cols + slot;
                sum += weight[slot] * in.by_pair[(pair * in.segments + s) * in.pair_stride + c];
            }
            if (in.shared != nullptr) {
                sum += in.shared[s * in.shared_segment_stride + r * in.shared_stride + c];
            }
            tree[s / 2] = s % 2 == 0 ? sum : tree[s / 2] + sum;
        }
        out.data[r * out.stride + c] = in.segments == 4 ? tree[0] + tree[1] : tree[0];
    }
}

__global__ void __launch_bounds__(kThreads)
    swiglu_tiles_kernel(float* gate, const float* up, int64_t stride, const Mlp* table,
                        Grouping grouping, float limit) {
    if (static_cast<int32_t>(blockIdx.y) >= *grouping.tile_count) return;
    const RowTile tile = grouping.tiles[blockIdx.y];
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= table[tile.expert].down.k) return;
    for (int32_t r = 0; r < tile.rows; ++r) {
        const int64_t at = (tile.first + r) * stride + c;
        gate[at] = swiglu(gate[at], up[at], limit);
    }
}

}  // namespace

int64_t grouped_positions(int64_t pairs, int32_t experts) {
    return pairs + 7 * std::min<int64_t>(pairs, experts);
}

int32_t grouped_tiles(int64_t pairs, int32_t experts, int32_t tile_rows) {
    // An expert's last tile may be short: one more than the whole ones for each busy expert.
    const int64_t busy = std::min<int64_t>(pairs, experts);
    return static_cast<int32_t>(std::min(pairs, busy + (pairs - busy) / tile_rows));
}

void group_pairs(const Grouping& grouping, View<const int32_t> ids, int32_t experts,
                 int32_t tile_rows, cudaStream_t stream) {
    require(experts <= 4096, "moe: at most 4096 experts");
    require(tile_rows % 8 == 0, "moe: tiles of whole groups of 8 rows");
    const size_t shared = static_cast<size_t>(experts) * 3 * sizeof(int32_t);
    group_pairs_kernel<<<1, kGroupThreads, shared, stream>>>(grouping, ids, experts, tile_rows);
    LAUNCH_CHECK();
}

void combine(View<float> out, const Combination& parts, cudaStream_t stream) {
    require(parts.segments == 1 || parts.segments == 2 || parts.segments == 4,
            "moe: 1, 2 or 4 segments");
    if (out.rows == 0 || out.cols == 0) return;
    const dim3 grid(static_cast<unsigned>((out.cols + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min<int64_t>(out.rows, 65535)));
    combine_kernel<<<grid, kThreads, 0, stream>>>(out, parts);
    LAUNCH_CHECK();
}

void swiglu_tiles(float* gate, const float* up, int64_t stride, const Mlp* table,
                  const Grouping& grouping, float limit, cudaStream_t stream) {
    if (grouping.most_tiles == 0) return;
    const dim3 grid(static_cast<unsigned>((stride + kThreads - 1) / kThreads),
                    static_cast<unsigned>(grouping.most_tiles));
    swiglu_tiles_kernel<<<grid, kThreads, 0, stream>>>(gate, up, stride, table, grouping, limit);
    LAUNCH_CHECK();
}

}  // namespace quadrille::cuda
