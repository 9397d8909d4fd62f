// SPDX-License-Identifier: Apache-2.0
// The sparse indexer of an MLA layer: pools of keys, their scores, the positions a row attends to.
// Scores are fp32 sums in a fixed order; the choice is exact: the largest scores, the lowest pool
// among equals, found by four passes over the scores' bits.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/sequence_launch.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPool = 64;
constexpr int kTilePools = 32;  // pools scored by a thread block
constexpr int kHeadGroups = kThreads / kTilePools;
constexpr int kSelectThreads = 1024;
constexpr int64_t kKeyLimit = int64_t{1} << 26;  // scores held at once

struct Sequence {
    int64_t slot;
    int64_t first;     // row
    int64_t position;  // of its first row
    int64_t end;       // position behind its last row
};

__device__ Sequence sequence_of(const Rows& rows, int64_t row) {
    const int32_t i = rows.row_sequence[row];
    const int64_t first = rows.begin[i];
    const int64_t position = rows.position[i];
    return {rows.slot[i], first, position, position + rows.begin[i + 1] - first};
}

// A row that completes a pool writes it: softmax over the pool's tokens, per channel.
__global__ void __launch_bounds__(kThreads)
    pool_kernel(IndexCache cache, View<const float> key, View<const float> gate, const float* ape,
                int32_t pool, int64_t d, const __grid_constant__ Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const Sequence s = sequence_of(rows, row);
    const int64_t last = s.position + row - s.first;
    if (s.slot < 0 || (last + 1) % pool != 0) return;
    const float* ring = cache.ring.data + s.slot * cache.ring.stride;
    float* to = cache.pools.data + s.slot * cache.pools.stride + last / pool * d;
    for (int64_t c = threadIdx.x; c < d; c += kThreads) {
        const auto token = [&](int32_t j, bool of_gate) {
            const int64_t t = last - pool + 1 + j;
            if (t < s.position) return ring[t % cache.ring_size * 2 * d + (of_gate ? d : 0) + c];
            const View<const float>& from = of_gate ? gate : key;
            return from.data[(s.first + t - s.position) * from.stride + c];
        };
        float largest = token(0, true) + ape[c];
        for (int32_t j = 1; j < pool; ++j) {
            largest = fmaxf(largest, token(j, true) + ape[j * d + c]);
        }
        float sum = 0.0f;
        float weighted = 0.0f;
        for (int32_t j = 0; j < pool; ++j) {
            const float weight = expf(token(j, true) + ape[j * d + c] - largest);
            sum += weight;
            weighted += weight * token(j, false);
        }
        to[c] = weighted / sum;
    }
}

// After all pools are made: the last ring_size rows of each sequence into its ring.
__global__ void __launch_bounds__(kThreads)
    ring_kernel(IndexCache cache, View<const float> key, View<const float> gate, int64_t d,
                const __grid_constant__ Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const Sequence s = sequence_of(rows, row);
    const int64_t t = s.position + row - s.first;
    if (s.slot < 0 || t < s.end - cache.ring_size) return;
    float* to = cache.ring.data + s.slot * cache.ring.stride + t % cache.ring_size * 2 * d;
    for (int64_t c = threadIdx.x; c < d; c += kThreads) {
        to[c] = key.data[row * key.stride + c];
        to[d + c] = gate.data[row * gate.stride + c];
    }
}

// Ascending keys are descending scores; a NaN counts as -inf and -0 as 0.
__device__ uint32_t sort_key(float score) {
    const float value = isnan(score) ? -INFINITY : score + 0.0f;
    const uint32_t bits = __float_as_uint(value);
    return ~((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
}

struct Scoring {
    View<const float> query;
    View<const float> weight;
    IndexCache cache;
    IndexParams params;
    Rows rows;
    int64_t first;  // row of the launch
    uint32_t* keys;
    int64_t key_stride;
};

// Pools a row sees, or 0 where it attends to everything or to nothing.
__device__ int64_t pools_to_rank(const Rows& rows, const IndexParams& params, int64_t row) {
    const Sequence s = sequence_of(rows, row);
    const int64_t pools = (s.position + row - s.first + 1) / params.pool;
    return s.slot < 0 || pools <= params.topk / params.pool ? 0 : pools;
}

// sum_h weight[h] relu(query[h] . pool / sqrt(d)) / sqrt(heads) of kTilePools pools and one row. A
// thread takes every kHeadGroups-th head of one pool. Shared: pools (d x kTilePools), the sums.
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ Scoring args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ float shared[];
    __shared__ float sums[kHeadGroups][kTilePools];
    const int64_t row = args.first + blockIdx.y;
    const int64_t pools = pools_to_rank(args.rows, args.params, row);
    const int64_t tile = int64_t{blockIdx.x} * kTilePools;
    if (tile >= pools) return;
    const int64_t d = args.params.head_dim;
    const int32_t heads = args.params.heads;
    const Sequence s = sequence_of(args.rows, row);
    const float* from = args.cache.pools.data + s.slot * args.cache.pools.stride + tile * d;
    for (int64_t i = threadIdx.x; i < kTilePools * d; i += kThreads) {
        // Pools run along the threads: one row of 33 floats per channel, free of conflicts.
        shared[i % d * (kTilePools + 1) + i / d] = tile + i / d < pools ? from[i] : 0.0f;
    }
    __syncthreads();
    const int p = static_cast<int>(threadIdx.x) % kTilePools;
    const int group = static_cast<int>(threadIdx.x) / kTilePools;
    const float score_scale = 1.0f / sqrtf(static_cast<float>(d));
    const float head_scale = 1.0f / sqrtf(static_cast<float>(heads));
    const float* weight = args.weight.data + row * args.weight.stride;
    float sum = 0.0f;
    for (int32_t h = group; h < heads; h += kHeadGroups) {
        const float* q = args.query.data + row * args.query.stride + h * d;
        float match = 0.0f;
        for (int64_t c = 0; c < d; ++c) match += q[c] * shared[c * (kTilePools + 1) + p];
        sum += weight[h] * head_scale * fmaxf(match * score_scale, 0.0f);
    }
    sums[group][p] = sum;
    __syncthreads();
    if (group != 0 || tile + p >= pools) return;
    float score = 0.0f;
#pragma unroll
    for (int g = 0; g < kHeadGroups; ++g) score += sums[g][p];
    args.keys[int64_t{blockIdx.y} * args.key_stride + tile + p] = sort_key(score);
}

// Exclusive sum over the block and its total. `shared`: one number per warp.
__device__ int2 block_scan(int value, int* shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int running = value;
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, running, stride);
        if (lane >= stride) running += other;
    }
    if (lane == 31) shared[warp] = running;
    __syncthreads();
    int before = 0;
    int total = 0;
    for (int w = 0; w < kSelectThreads / 32; ++w) {
        if (w < warp) before += shared[w];
        total += shared[w];
    }
    __syncthreads();
    return {before + running - value, total};
}

struct Threshold {
    uint32_t key;     // the largest key taken
    int32_t at_most;  // how many of those with exactly this key, the lowest pools first
};

// The key of the wanted-th smallest, byte by byte from the top.
__device__ Threshold find_threshold(const uint32_t* keys, int64_t pools, int32_t wanted,
                                    int32_t* histogram) {
    __shared__ uint32_t prefix;
    __shared__ int32_t left;
    if (threadIdx.x == 0) {
        prefix = 0;
        left = wanted;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8);
        for (int64_t p = threadIdx.x; p < pools; p += kSelectThreads) {
            if ((keys[p] & mask) == prefix) atomicAdd(&histogram[keys[p] >> shift & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bucket = 0;
            int32_t need = left;
            while (need > histogram[bucket]) need -= histogram[bucket++];
            prefix |= static_cast<uint32_t>(bucket) << shift;
            left = need;
        }
        __syncthreads();
    }
    return {prefix, left};
}

__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(View<int32_t> selected, int32_t* count, const uint32_t* all_keys,
                  int64_t key_stride, IndexParams params, const __grid_constant__ Rows rows,
                  int64_t first) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ int32_t histogram[256];
    __shared__ int scan[kSelectThreads / 32];
    const int64_t row = first + blockIdx.x;
    const Sequence s = sequence_of(rows, row);
    const int64_t pools = pools_to_rank(rows, params, row);
    int32_t* out = selected.data + row * selected.stride;
    const int32_t wanted = params.topk / params.pool;
    const int64_t visible = s.position + row - s.first + 1;
    const int64_t tail = pools == 0 ? 0 : visible - pools * params.pool;
    const int64_t used = pools == 0 ? 0 : int64_t{wanted} * params.pool + tail;
    for (int64_t i = used + threadIdx.x; i < selected.cols; i += kSelectThreads) out[i] = -1;
    if (threadIdx.x == 0) {
        count[row] = s.slot < 0 ? 0 : pools == 0 ? -1 : static_cast<int32_t>(used);
    }
    if (pools == 0) return;
    const uint32_t* keys = all_keys + int64_t{blockIdx.x} * key_stride;
    const Threshold threshold = find_threshold(keys, pools, wanted, histogram);
    int taken = 0;
    int32_t equal = 0;
    for (int64_t start = 0; start < pools; start += kSelectThreads) {
        const int64_t p = start + threadIdx.x;
        const uint32_t key = p < pools ? keys[p] : ~0u;
        const int is_equal = p < pools && key == threshold.key ? 1 : 0;
        const int2 equals = block_scan(is_equal, scan);
        const int take = p < pools && (key < threshold.key ||
                                       (is_equal != 0 && equal + equals.x < threshold.at_most))
                             ? 1
                             : 0;
        const int2 takes = block_scan(take, scan);
        if (take != 0) {
            for (int32_t j = 0; j < params.pool; ++j) {
                out[int64_t{taken + takes.x} * params.pool + j] =
                    static_cast<int32_t>(p * params.pool + j);
            }
        }
        taken += takes.y;
        equal += equals.y;
    }
    for (int64_t i = threadIdx.x; i < tail; i += kSelectThreads) {
        out[int64_t{wanted} * params.pool + i] = static_cast<int32_t>(pools * params.pool + i);
    }
}

int64_t rows_at_once(int64_t rows, int64_t pools) {
    return std::clamp<int64_t>(kKeyLimit / std::max<int64_t>(pools, 1), 1,
                               std::min<int64_t>(rows, 65535));
}

int64_t most_pools(const IndexCache& cache, const IndexParams& params) {
    return cache.pools.cols / params.head_dim;
}

}  // namespace

void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                const float* ape, const IndexParams& params, const Rows& rows,
                LaunchStream stream) {
    const int64_t d = params.head_dim;
    require(params.pool > 0 && params.pool <= kMaxPool && cache.ring_size >= params.pool - 1,
            "index_pool: 1..64 tokens per pool, the ring holds an unfinished one");
    require(key.rows == rows.m && gate.rows == rows.m && key.cols == d && gate.cols == d &&
                cache.ring.cols == cache.ring_size * 2 * d,
            "index_pool: key and gate (m, d), ring (slots, ring_size 2 d)");
    if (rows.m == 0) return;
    const auto blocks = static_cast<unsigned>(rows.m);
    launch_dependent(pool_kernel, blocks, kThreads, 0, stream, cache, key, gate, ape, params.pool,
                     d, rows);
    launch_dependent(ring_kernel, blocks, kThreads, 0, stream, cache, key, gate, d, rows);
}

int64_t index_keys(int64_t rows, const IndexCache& cache, const IndexParams& params) {
    const int64_t pools = most_pools(cache, params);
    return pools <= params.topk / params.pool ? 0 : rows_at_once(rows, pools) * pools;
}

void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                  View<const float> weight, const IndexCache& cache, const IndexParams& params,
                  const Rows& rows, uint32_t* keys, KernelSet& kernels, LaunchStream stream) {
    const int64_t d = params.head_dim;
    require(params.pool > 0 && params.topk >= params.pool && params.topk % params.pool == 0,
            "index_select: topk is a multiple of pool");
    require(selected.rows == rows.m && selected.cols == params.topk + params.pool - 1 &&
                query.rows == rows.m && query.cols == params.heads * d && weight.rows == rows.m &&
                weight.cols == params.heads,
            "index_select: selected (m, topk + pool - 1), query (m, heads d), weight (m, heads)");
    if (rows.m == 0) return;
    const int64_t pools = most_pools(cache, params);
    const bool may_rank = pools > params.topk / params.pool;
    const int64_t step = rows_at_once(rows.m, pools);
    const auto shared =
        static_cast<int>(d * (kTilePools + 1) * static_cast<int64_t>(sizeof(float)));
    kernels.allow_shared(score_kernel, shared);
    for (int64_t first = 0; first < rows.m; first += step) {
        const auto count_rows = static_cast<unsigned>(std::min(step, rows.m - first));
        if (may_rank) {
            const Scoring scoring = {query, weight, cache, params, rows, first, keys, pools};
            const dim3 grid(static_cast<unsigned>((pools + kTilePools - 1) / kTilePools),
                            count_rows);
            launch_dependent(score_kernel, grid, kThreads, shared, stream, scoring);
        }
        launch_dependent(select_kernel, count_rows, kSelectThreads, 0, stream, selected, count,
                         keys, pools, params, rows, first);
    }
}

}  // namespace quadrille::cuda
