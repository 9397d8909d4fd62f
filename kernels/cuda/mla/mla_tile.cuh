// SPDX-License-Identifier: Apache-2.0
// What the kernels of absorbed MLA share. The list of a row is cut into tiles of kTile entries,
// whatever the company. Each tile has its own softmax, and a row is the fold of its tiles in order,
// which a thread block does that has the whole row, or merge_kernel: the same operations on the
// same numbers. And numbers as two fp16 terms for tensor cores.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/op_types.h"

#include <cuda_fp16.h>

namespace quadrille::cuda::mla {

constexpr int kTile = 32;  // list entries with a softmax of their own
constexpr int kMaxLatent = 512;
constexpr int kAttendThreads = 512;
constexpr int kHeads = 32;  // of a thread block of `attend`

struct Attention {
    View<float> out;
    View<const float> query;
    Matrix kv_b;
    View<const float> latents;
    View<const int32_t> selected;
    const int32_t* count;
    MlaParams params;
    Rows rows;
    int64_t first;  // rows [first, first + used) of the pass
    int64_t used;
    int64_t tiles = 0;            // the most of any row
    float* queries = nullptr;     // (used, heads, r)
    float* sums = nullptr;        // (used, heads, r)
    float* parts = nullptr;       // (used, heads, tiles, r); nullptr: whole rows
    float* part_stats = nullptr;  // (used, heads, tiles, 2): largest score, sum of exponentials
};

struct Attended {
    const float* latents;
    const int32_t* list;
    int32_t listed;  // entries of `list`, read before the slot is known; < 0: 0 .. count - 1
    int32_t count;   // 0: a row of padding
};
__device__ __forceinline__ Attended attended(const Attention& args, int64_t row) {
    const int32_t listed = args.count[row];
    const int32_t i = args.rows.row_sequence[row];
    const int64_t slot = args.rows.slot[i];
    const int32_t all = args.rows.position[i] + static_cast<int32_t>(row) - args.rows.begin[i] + 1;
    const int32_t count = min(listed < 0 ? all : listed, static_cast<int32_t>(args.selected.cols));
    return {args.latents.data + max(slot, int64_t{0}) * args.latents.stride,
            args.selected.data + row * args.selected.stride, listed, slot < 0 ? 0 : count};
}

// How what has been summed and what a tile adds change where the largest score becomes `after`.
struct Fold {
    float after, keep, take;
};
__device__ __forceinline__ Fold fold_scale(float before, float most) {
    const float after = fmaxf(before, most);
    return {after, expf(before - after), expf(most - after)};
}
// Never contracted otherwise: two kernels do it.
__device__ __forceinline__ float fold(float sum, float keep, float part, float take) {
    return __fmaf_rn(sum, keep, __fmul_rn(part, take));
}

// Two floats as two fp16 terms each.
__device__ __forceinline__ void split_f16(float x, float y, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}
// The power of two that brings magnitudes up to `most` below 2^14, and its inverse: normal numbers.
__device__ __forceinline__ float lift(float most) {
    return __uint_as_float((267 - max(__float_as_uint(most) >> 23, 14u)) << 23);
}
__device__ __forceinline__ float unlift(float most) {
    return __uint_as_float((max(__float_as_uint(most) >> 23, 14u) - 13) << 23);
}
// The largest of non-negative numbers, NaN above all.
__device__ __forceinline__ float warp_largest(float value) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const __half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const __half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// d += a * b but for low times low, the small terms first.
__device__ __forceinline__ void mma_split(float (&d)[4], const uint32_t (&high)[4],
                                          const uint32_t (&low)[4], const uint32_t* b_high,
                                          const uint32_t* b_low) {
    mma_f16(d, low, b_high[0], b_high[1]);
    mma_f16(d, high, b_low[0], b_low[1]);
    mma_f16(d, high, b_high[0], b_high[1]);
}

}  // namespace quadrille::cuda::mla
