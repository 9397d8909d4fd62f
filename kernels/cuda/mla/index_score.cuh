// SPDX-License-Identifier: Apache-2.0
// Scores of pools for the rows of a pass, as keys whose ascending order is that of falling scores.
//
// A thread block scores tiles of pools for a few rows of one sequence: kSplit warps a row, each
// with its part of a tile. A thread takes kGroupHeads heads of its row and kPools pools, so that
// what it reads from shared memory is used kPools or kGroupHeads times. However the pass is cut, a
// score is one arithmetic: channels in order, the heads of a group in order, then the groups as a
// tree.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/op_types.h"

namespace quadrille::cuda::index {

constexpr int kMostRows = 4;    // of a thread block
constexpr int kGroupHeads = 8;  // heads of a thread
constexpr int kGroups = 4;      // threads that share a pool
constexpr int kPoolLanes = 8;   // threads that share the heads
constexpr int kHeads = 32;      // of a warp at a time
constexpr int kChannels = 128;  // in shared memory at a time
constexpr int kStride = 132;    // floats from head to head, pool to pool: eight of them at one
                                // channel, 16 bytes each, touch every bank once
static_assert(kGroups * kPoolLanes == 32 && kGroups * kGroupHeads == kHeads);

struct Scoring {
    View<const float> query;
    View<const float> weight;
    IndexCache cache;
    IndexParams params;
    Rows rows;
    int32_t first;  // row of the launch
    int32_t count;  // rows of the launch
    int32_t tile;   // rows of a thread block
    uint32_t* keys;
    int64_t key_stride;
};

constexpr int tile_pools(int pools, int split) {
    return kPoolLanes * pools * split;
}
constexpr int score_shared(int tile, int rows) {
    return ((rows * kHeads + tile) * kStride + rows * kHeads) * static_cast<int>(sizeof(float));
}

// Thread blocks along y: where sequence i has its tiles, without a table. Its first is number
// (row in the launch + i (tile - 1)) / tile, which leaves room for every tile before it: each
// sequence moves the next by (rows + tile - 1) / tile or more.
constexpr int64_t first_tile(int64_t row, int64_t sequence, int64_t tile) {
    return (row + sequence * (tile - 1)) / tile;
}

// Ascending keys are descending scores; a NaN counts as -inf and -0 as 0.
__device__ __forceinline__ uint32_t sort_key(float score) {
    const float value = isnan(score) ? -INFINITY : score + 0.0f;
    const uint32_t bits = __float_as_uint(value);
    return ~((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
}

// Pools to rank of a row that sees `visible` tokens: 0 where it attends to all of them.
__device__ __forceinline__ int32_t pools_to_rank(const IndexParams& params, int32_t visible) {
    const int32_t pools = visible / params.pool;
    return pools <= params.topk / params.pool ? 0 : pools;
}

struct RowTile {
    int64_t slot;
    int32_t row;  // first
    int32_t rows;
    int32_t visible;  // tokens that the first row sees
};

// The rows of this thread block; none: a sequence of no slot, or a number that no tile has.
__device__ __forceinline__ RowTile find_tile(const Scoring& args, RowTile* shared) {
    if (threadIdx.x == 0) shared->rows = 0;
    __syncthreads();
    const auto number = static_cast<int32_t>(blockIdx.y);
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.rows.sequences;
         i += static_cast<int32_t>(blockDim.x)) {
        const int32_t begin = args.rows.begin[i];
        const int32_t first = max(begin, args.first);
        const int32_t end = min(args.rows.begin[i + 1], args.first + args.count);
        const int32_t position = args.rows.position[i];
        const int32_t slot = args.rows.slot[i];
        const int32_t of_sequence = number - (first - args.first + i * (args.tile - 1)) / args.tile;
        const int32_t row = first + of_sequence * args.tile;
        if (slot < 0 || of_sequence < 0 || row >= end) continue;
        *shared = {slot, row, min(end - row, args.tile), position + row - begin + 1};
    }
    __syncthreads();
    return *shared;
}

// Lines `first`, first + step, .. below `lines`: up to kChannels floats each, one by one `stride`
// apart; zeros for lines from `valid` on and up to a multiple of four floats. All lanes of a warp.
__device__ __forceinline__ void stage_lines(float* to, const float* from, int64_t stride,
                                            int64_t channels, int first, int step, int lines,
                                            int valid) {
    const int c = static_cast<int>(threadIdx.x) % 32 * 4;
    if (c >= channels) return;
    const bool aligned =
        reinterpret_cast<uintptr_t>(from) % 16 == 0 && stride % 4 == 0 && channels % 4 == 0;
    int line = first;
    if (aligned) {
        const int whole = min(valid, lines);
#pragma unroll 4
        for (; line < whole; line += step) {
            copy_async_16(to + line * kStride + c, from + line * stride + c);
        }
    }
    for (; line < lines; line += step) {
        float value[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            value[j] = line < valid && c + j < channels ? from[line * stride + c + j] : 0.0f;
        }
        *reinterpret_cast<float4*>(to + line * kStride + c) =
            make_float4(value[0], value[1], value[2], value[3]);
    }
}

// Every step-th of the heads from `head` on of a row, channels from `channel` on, and what the
// heads' relu is multiplied by.
__device__ __forceinline__ void stage_queries(float* to, float* weights, const Scoring& args,
                                              int64_t row, int first, int step, int32_t head,
                                              int64_t channel) {
    const int64_t d = args.params.head_dim;
    const int32_t heads = args.params.heads;
    const float* from = args.query.data + row * args.query.stride + head * d + channel;
    stage_lines(to, from, d, min(d - channel, static_cast<int64_t>(kChannels)), first, step, kHeads,
                heads - head);
    if (first != 0) return;
    const float scale =
        1.0f / sqrtf(static_cast<float>(heads)) * (1.0f / sqrtf(static_cast<float>(d)));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* weight = args.weight.data + row * args.weight.stride;
    weights[lane] = head + lane < heads ? weight[head + lane] * scale : 0.0f;
}

// match[i][j] += query head 4 i . pool 8 j, over 4 * vectors channels in order.
template <int kPools>
__device__ __forceinline__ void multiply(float (&match)[kGroupHeads][kPools], const float* query,
                                         const float* pools, int vectors) {
    // Four pools: as many registers as two thread blocks of eight warps have.
#pragma unroll kPools == 4 ? 1 : 2
    for (int v = 0; v < vectors; ++v) {
        float4 a[kGroupHeads];
#pragma unroll
        for (int i = 0; i < kGroupHeads; ++i) {
            a[i] = *reinterpret_cast<const float4*>(query + i * kGroups * kStride + v * 4);
        }
#pragma unroll
        for (int j = 0; j < kPools; ++j) {
            const float4 b =
                *reinterpret_cast<const float4*>(pools + j * kPoolLanes * kStride + v * 4);
#pragma unroll
            for (int i = 0; i < kGroupHeads; ++i) {
                float sum = fmaf(a[i].x, b.x, match[i][j]);
                sum = fmaf(a[i].y, b.y, sum);
                sum = fmaf(a[i].z, b.z, sum);
                match[i][j] = fmaf(a[i].w, b.w, sum);
            }
        }
    }
}

// What a thread works on.
struct Place {
    int row;    // of the tile
    int part;   // of the row's warps
    int group;  // of heads
    int pool;   // of the tile: its first
};

// Lanes 2 i and 2 i + 1 read the same pool, lanes i and i + 2 the same heads: 16 lanes then take
// one turn of shared memory instead of two.
template <int kPools, int kSplit>
__device__ __forceinline__ Place place_of() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int part = warp % kSplit;
    return {warp / kSplit, part, lane % 2 + lane / 16 * 2,
            part * kPoolLanes * kPools + lane / 2 % kPoolLanes};
}

// The scores of the pools from `first` on, `count` that exist, of one group of heads of one row.
template <int kPools, int kSplit>
__device__ __forceinline__ void score_tile(float (&score)[kPools], const Scoring& args,
                                           const RowTile& tile, const Place& place, int32_t first,
                                           int32_t count, bool works, bool staged, float* shared) {
    constexpr int kTile = tile_pools(kPools, kSplit);
    const int warp = place.row * kSplit + place.part;
    float* pools = shared;
    float* queries = pools + (kTile + place.row * kHeads) * kStride;
    float* weights = pools + (kTile + args.tile * kHeads) * kStride + place.row * kHeads;
    const int64_t d = args.params.head_dim;
    const bool one = args.params.heads <= kHeads && d <= kChannels;
    const float* from =
        args.cache.pools.data + tile.slot * args.cache.pools.stride + int64_t{first} * d;
    for (int32_t head = 0; head < args.params.heads; head += kHeads) {
        float match[kGroupHeads][kPools] = {};
        for (int64_t channel = 0; channel < d; channel += kChannels) {
            __syncthreads();  // all have read what was there
            if (place.row < tile.rows && (!one || !staged)) {
                stage_queries(queries, weights, args, tile.row + place.row, place.part, kSplit,
                              head, channel);
            }
            const int64_t channels = min(d - channel, static_cast<int64_t>(kChannels));
            stage_lines(pools, from + channel, d, channels, warp, args.tile * kSplit, kTile, count);
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
            if (!works) continue;
            multiply(match, queries + place.group * kStride, pools + place.pool * kStride,
                     (static_cast<int>(channels) + 3) / 4);
        }
        if (!works) continue;
#pragma unroll
        for (int i = 0; i < kGroupHeads; ++i) {
            const float weight = weights[place.group + i * kGroups];
#pragma unroll
            for (int j = 0; j < kPools; ++j) {
                // A NaN stays one.
                score[j] = fmaf(weight, match[i][j] < 0.0f ? 0.0f : match[i][j], score[j]);
            }
        }
    }
}

// sum_h weight[h] relu(query[h] . pool / sqrt(d)) / sqrt(heads). Threads: 32 kSplit a row of a
// tile.
template <int kPools, int kSplit>
__global__ void __launch_bounds__(kMostRows* kSplit * 32, 2)
    score_kernel(const __grid_constant__ Scoring args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ float4 shared_scores[];
    __shared__ RowTile found;
    constexpr int kTile = tile_pools(kPools, kSplit);
    const RowTile tile = find_tile(args, &found);
    if (tile.rows == 0) return;
    const Place place = place_of<kPools, kSplit>();
    const int32_t most = pools_to_rank(args.params, tile.visible + tile.rows - 1);
    const int32_t own =
        place.row < tile.rows ? pools_to_rank(args.params, tile.visible + place.row) : 0;
    uint32_t* keys = args.keys + (tile.row - args.first + place.row) * args.key_stride;
    bool staged = false;
    const auto step = static_cast<int32_t>(gridDim.x) * kTile;
    for (int32_t first = static_cast<int32_t>(blockIdx.x) * kTile; first < most; first += step) {
        float score[kPools] = {};
        const bool works = first + place.part * kPoolLanes * kPools < own;
        score_tile<kPools, kSplit>(score, args, tile, place, first, most - first, works, staged,
                                   reinterpret_cast<float*>(shared_scores));
        staged = true;
        if (!works) continue;
#pragma unroll
        for (int j = 0; j < kPools; ++j) {
            score[j] += __shfl_xor_sync(0xffffffffu, score[j], 1);
            score[j] += __shfl_xor_sync(0xffffffffu, score[j], 16);
            const int32_t p = first + place.pool + j * kPoolLanes;
            if (j % kGroups == place.group && p < own) keys[p] = sort_key(score[j]);
        }
    }
}

}  // namespace quadrille::cuda::index
