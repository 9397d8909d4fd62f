// SPDX-License-Identifier: Apache-2.0
// The positions a row attends to, from the keys of its pools: the smallest keys, the lowest pool
// among equals, in ascending order. Exact: three passes over the bits of the keys find the largest
// key taken, a prefix sum over pools finds each one's place.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/mla/index_score.cuh"

namespace quadrille::cuda::index {

constexpr int kChoiceThreads = 512;
constexpr int kChoiceWarps = kChoiceThreads / 32;
constexpr int kBuckets = 2048;
constexpr int kThreadBuckets = kBuckets / kChoiceThreads;
constexpr int kThreadKeys = 4;
static_assert(kThreadBuckets == 4 && kChoiceWarps <= 32);

struct Choosing {
    View<int32_t> selected;
    int32_t* count;
    IndexParams params;
    Rows rows;
    int64_t first;  // row of the launch
    const uint32_t* keys;
    int64_t key_stride;
};

struct Scan {
    int32_t before;  // of the threads before this one
    int32_t total;
};

// Sums over the block. `shared`: a number per warp, which nobody reads or writes around the call
// without a barrier.
__device__ __forceinline__ Scan block_scan(int32_t value, int32_t* shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const auto inclusive = [lane](int32_t sum) {
#pragma unroll
        for (int stride = 1; stride < 32; stride *= 2) {
            const int32_t other = __shfl_up_sync(0xffffffffu, sum, stride);
            if (lane >= stride) sum += other;
        }
        return sum;
    };
    const int32_t within = inclusive(value);
    if (lane == 31) shared[warp] = within;
    __syncthreads();
    const int32_t warps = inclusive(lane < kChoiceWarps ? shared[lane] : 0);
    const int32_t upto = __shfl_sync(0xffffffffu, warps, warp);
    const int32_t own = __shfl_sync(0xffffffffu, within, 31);
    return {upto - own + within - value, __shfl_sync(0xffffffffu, warps, 31)};
}

struct Threshold {
    uint32_t key;     // the largest key taken
    int32_t at_most;  // how many of those with exactly this key, the lowest pools first
};

// One step of the search: bits [shift, shift + bits) of the wanted-th smallest among the keys that
// have threshold.key in the bits above.
__device__ inline void narrow(Threshold& threshold, Threshold* next, const uint32_t* keys,
                              int32_t pools, int shift, int bits, int4* histogram,
                              int32_t* totals) {
    histogram[threadIdx.x] = make_int4(0, 0, 0, 0);
    __syncthreads();
    auto* counts = reinterpret_cast<int32_t*>(histogram);
    const uint32_t above = shift + bits == 32 ? 0u : ~0u << (shift + bits);
    const uint32_t bucket_mask = (1u << bits) - 1;
#pragma unroll 4
    for (int32_t p = static_cast<int32_t>(threadIdx.x); p < pools; p += kChoiceThreads) {
        const uint32_t key = keys[p];
        if ((key & above) == threshold.key) atomicAdd(&counts[key >> shift & bucket_mask], 1);
    }
    __syncthreads();
    const int4 own = histogram[threadIdx.x];
    const int32_t in[kThreadBuckets] = {own.x, own.y, own.z, own.w};
    int32_t before = block_scan(own.x + own.y + own.z + own.w, totals).before;
#pragma unroll
    for (int b = 0; b < kThreadBuckets; ++b) {
        if (before < threshold.at_most && threshold.at_most <= before + in[b]) {
            const auto bucket = static_cast<uint32_t>(threadIdx.x) * kThreadBuckets + b;
            *next = {threshold.key | bucket << shift, threshold.at_most - before};
        }
        before += in[b];
    }
    __syncthreads();
    threshold = *next;
}

// chosen[i]: the i-th pool taken, `wanted` of them.
__device__ inline void choose(int32_t* chosen, const Threshold& threshold, const uint32_t* keys,
                              int32_t pools, int32_t wanted, int32_t* totals) {
    int32_t less = 0;  // keys before this thread's that are below the threshold, and at it
    int32_t equal = 0;
    for (int32_t start = 0; start < pools; start += kChoiceThreads * kThreadKeys) {
        const int32_t first = start + static_cast<int32_t>(threadIdx.x) * kThreadKeys;
        uint32_t key[kThreadKeys];
        int32_t both = 0;  // below the threshold, and 65536 times at it
#pragma unroll
        for (int j = 0; j < kThreadKeys; ++j) {
            const bool is_one = first + j < pools;
            key[j] = is_one ? keys[first + j] : 0u;
            if (is_one) both += key[j] < threshold.key ? 1 : key[j] == threshold.key ? 65536 : 0;
        }
        const Scan scan = block_scan(both, totals);
        int32_t less_before = less + scan.before % 65536;
        int32_t equal_before = equal + scan.before / 65536;
#pragma unroll
        for (int j = 0; j < kThreadKeys; ++j) {
            if (first + j >= pools) break;
            const bool at = key[j] == threshold.key;
            if (key[j] < threshold.key || (at && equal_before < threshold.at_most)) {
                chosen[less_before + min(equal_before, threshold.at_most)] = first + j;
            }
            less_before += key[j] < threshold.key ? 1 : 0;
            equal_before += at ? 1 : 0;
        }
        less += scan.total % 65536;
        equal += scan.total / 65536;
        __syncthreads();
        if (less + min(equal, threshold.at_most) == wanted) return;
    }
}

// A thread block per row. Dynamic shared memory: topk / pool numbers.
__global__ void __launch_bounds__(kChoiceThreads)
    select_kernel(const __grid_constant__ Choosing args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ float4 shared_chosen[];
    __shared__ int4 histogram[kChoiceThreads];
    __shared__ int32_t totals[kChoiceWarps];
    __shared__ Threshold next;
    auto* chosen = reinterpret_cast<int32_t*>(shared_chosen);
    const int64_t row = args.first + blockIdx.x;
    const int32_t i = args.rows.row_sequence[row];
    const bool exists = args.rows.slot[i] >= 0;
    const auto visible = static_cast<int32_t>(args.rows.position[i] + row - args.rows.begin[i] + 1);
    const int32_t pool = args.params.pool;
    const int32_t pools = exists ? pools_to_rank(args.params, visible) : 0;
    const int32_t wanted = args.params.topk / pool;
    const int32_t topk = wanted * pool;
    const int32_t used = pools == 0 ? 0 : topk + visible - pools * pool;
    int32_t* out = args.selected.data + row * args.selected.stride;
    for (int64_t k = used + threadIdx.x; k < args.selected.cols; k += kChoiceThreads) out[k] = -1;
    if (threadIdx.x == 0) {
        args.count[row] = !exists ? 0 : pools == 0 ? -1 : used;
    }
    if (pools == 0) return;
    const uint32_t* keys = args.keys + int64_t{blockIdx.x} * args.key_stride;
    Threshold threshold = {0, wanted};
    narrow(threshold, &next, keys, pools, 21, 11, histogram, totals);
    narrow(threshold, &next, keys, pools, 10, 11, histogram, totals);
    narrow(threshold, &next, keys, pools, 0, 10, histogram, totals);
    choose(chosen, threshold, keys, pools, wanted, totals);
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < topk; k += kChoiceThreads) {
        out[k] = chosen[k / pool] * pool + k % pool;
    }
    for (int32_t k = topk + static_cast<int32_t>(threadIdx.x); k < used; k += kChoiceThreads) {
        out[k] = pools * pool + k - topk;
    }
}

}  // namespace quadrille::cuda::index
