// SPDX-License-Identifier: Apache-2.0
// The sparse indexer of an MLA layer: pools of keys, their scores, the positions a row attends to.
// Scores are fp32 sums in a fixed order (index_score.cuh); the choice is exact: the largest scores,
// the lowest pool among equals (index_choice.cuh).
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/index_choice.cuh"
#include "kernels/cuda/index_score.cuh"
#include "kernels/cuda/sequence_launch.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPool = 64;
constexpr int64_t kScoreBlocks = 2048;  // a few for each place that a large device has for one
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

// The rows of a thread block: as many as a sequence has on average, in equal tiles.
int32_t tile_rows(const Rows& rows) {
    const int32_t mean = (rows.m + rows.sequences - 1) / std::max(rows.sequences, 1);
    const int32_t tiles = (mean + index::kMostRows - 1) / index::kMostRows;
    return (mean + tiles - 1) / tiles;
}

template <int kPools>
void launch_scores(const index::Scoring& scoring, KernelSet& kernels, LaunchStream stream) {
    const auto kernel = index::score_kernel<kPools>;
    kernels.allow_shared(kernel, index::score_shared(kPools, index::kMostRows));
    const int64_t tile = index::kPoolLanes * kPools;
    const int64_t rows = index::tile_bound(scoring);
    const int64_t pools =
        std::clamp<int64_t>(kScoreBlocks / rows, 1, (scoring.key_stride + tile - 1) / tile);
    const dim3 grid(static_cast<unsigned>(pools), static_cast<unsigned>(rows));
    launch_dependent(kernel, grid, scoring.tile * 32, index::score_shared(kPools, scoring.tile),
                     stream, scoring);
}

// Few rows spread over the device only in small tiles of pools; many read shared memory less with
// large ones. The bits are the same.
void score(const index::Scoring& scoring, KernelSet& kernels, LaunchStream stream) {
    const int32_t tiles =
        std::max(scoring.rows.sequences, (scoring.count + scoring.tile - 1) / scoring.tile);
    if (tiles <= 2) {
        launch_scores<2>(scoring, kernels, stream);
    } else if (tiles <= 8) {
        launch_scores<4>(scoring, kernels, stream);
    } else {
        launch_scores<8>(scoring, kernels, stream);
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
    const auto shared = static_cast<int>(params.topk / params.pool * sizeof(int32_t));
    kernels.allow_shared(index::select_kernel, shared);
    for (int64_t first = 0; first < rows.m; first += step) {
        const auto count_rows = static_cast<int32_t>(std::min(step, rows.m - first));
        if (may_rank) {
            score({query, weight, cache, params, rows, first, count_rows, tile_rows(rows), keys,
                   pools},
                  kernels, stream);
        }
        const index::Choosing choosing = {selected, count, params, rows, first, keys, pools};
        launch_dependent(index::select_kernel, static_cast<unsigned>(count_rows),
                         index::kChoiceThreads, shared, stream, choosing);
    }
}

}  // namespace quadrille::cuda
