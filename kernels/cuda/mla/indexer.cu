// SPDX-License-Identifier: Apache-2.0
// The sparse indexer of an MLA layer: pools of keys, their scores, the positions a row attends to.
// Scores are fp32 sums in a fixed order (index_score.cuh); the choice is exact: the largest scores,
// the lowest pool among equals (index_choice.cuh).
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/mla/index_choice.cuh"
#include "kernels/cuda/mla/index_score.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int64_t kFewBlocks = 512;    // of a launch: all at once on a large device
constexpr int64_t kManyBlocks = 2048;  // several turns, so that the last one matters little
constexpr int64_t kKeyLimit = int64_t{1} << 26;  // scores held at once

struct Pooling {
    IndexCache cache;
    View<const float> key;
    View<const float> gate;
    const float* ape;
    int32_t pool;
    int32_t d;
    Rows rows;
};

// One row, and where its sequence lies.
struct Token {
    int32_t slot;
    int32_t begin;     // first row of the sequence
    int32_t position;  // of that row
    int32_t end;       // position behind the last row
    int32_t at;        // position of this row
};

__device__ __forceinline__ Token token_of(const Rows& rows, int32_t row) {
    const int32_t i = rows.row_sequence[row];
    const int32_t begin = rows.begin[i];
    const int32_t position = rows.position[i];
    return {rows.slot[i], begin, position, position + rows.begin[i + 1] - begin,
            position + row - begin};
}

// Channel c of the pool whose last token is this row: softmax over the pool's tokens.
__device__ __forceinline__ float pool_channel(const Pooling& args, const Token& token,
                                              const float* ring, int32_t c) {
    const int32_t first = token.at + 1 - args.pool;
    const auto value = [&](int32_t j, bool of_gate) {
        const int32_t t = first + j;
        if (t < token.position) {
            return ring[int64_t{t % args.cache.ring_size} * 2 * args.d + (of_gate ? args.d : 0) +
                        c];
        }
        const View<const float>& from = of_gate ? args.gate : args.key;
        return from.data[(token.begin + t - token.position) * from.stride + c];
    };
    float largest = value(0, true) + args.ape[c];
    for (int32_t j = 1; j < args.pool; ++j) {
        largest = fmaxf(largest, value(j, true) + args.ape[j * args.d + c]);
    }
    float sum = 0.0f;
    float weighted = 0.0f;
    for (int32_t j = 0; j < args.pool; ++j) {
        const float weight = expf(value(j, true) + args.ape[j * args.d + c] - largest);
        sum += weight;
        weighted += weight * value(j, false);
    }
    return weighted / sum;
}

// A row that completes a pool writes it; the last ring_size rows of a sequence go into its ring.
// One pool may begin before the rows: it is made of ring tokens, so the row that completes it also
// writes what replaces them, channel by channel, and the rows whose own that is leave it alone.
__global__ void __launch_bounds__(kThreads) pool_kernel(const __grid_constant__ Pooling args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const Token token = token_of(args.rows, static_cast<int32_t>(blockIdx.x));
    if (token.slot < 0) return;
    const int32_t size = args.cache.ring_size;
    const int32_t d = args.d;
    float* ring = args.cache.ring.data + token.slot * args.cache.ring.stride;
    float* pools = args.cache.pools.data + token.slot * args.cache.pools.stride;
    const int32_t first = token.position / args.pool * args.pool;
    const bool straddles = first + args.pool <= token.end;
    const int32_t old = straddles ? token.position - first : 0;  // ring tokens of that pool
    const auto keep = [&](int32_t t, int32_t c) {
        const int64_t row = token.begin + t - token.position;
        ring[int64_t{t % size} * 2 * d + c] = args.key.data[row * args.key.stride + c];
        ring[int64_t{t % size} * 2 * d + d + c] = args.gate.data[row * args.gate.stride + c];
    };
    const bool keeps = token.at >= token.end - size && (token.at - first) % size >= old;
    const bool completes = (token.at + 1) % args.pool == 0;
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < d; c += kThreads) {
        if (completes) {
            pools[int64_t{token.at / args.pool} * d + c] = pool_channel(args, token, ring, c);
        }
        if (keeps) keep(token.at, c);
        if (token.at != first + args.pool - 1) continue;
        for (int32_t t = first; t < first + old; ++t) {
            const int32_t last = t + (token.end - 1 - t) / size * size;  // in the place of t
            if (last > t) keep(last, c);
        }
    }
}

constexpr int kMostTile = std::max(index::tile_pools(8, 1), index::tile_pools(4, 2));

// The most rows of a thread block: one less on the smallest devices.
int32_t most_rows(const KernelSet& kernels) {
    static_assert(index::score_shared(kMostTile, index::kMostRows - 1) <= 98 * 1024);
    const bool fit = index::score_shared(kMostTile, index::kMostRows) <= kernels.shared_limit();
    return fit ? index::kMostRows : index::kMostRows - 1;
}

// The rows of a thread block: as many as a sequence has on average, in equal tiles.
int32_t tile_rows(const Rows& rows, int32_t most) {
    const int32_t mean = (rows.m + rows.sequences - 1) / std::max(rows.sequences, 1);
    const int32_t tiles = (mean + most - 1) / most;
    return (mean + tiles - 1) / tiles;
}

template <int kPools, int kSplit>
void launch_scores(const index::Scoring& scoring, int64_t blocks, KernelSet& kernels,
                   LaunchStream stream) {
    const auto kernel = index::score_kernel<kPools, kSplit>;
    const int tile = index::tile_pools(kPools, kSplit);
    kernels.allow_shared(kernel, index::score_shared(tile, most_rows(kernels)));
    const int64_t rows = index::first_tile(scoring.count, scoring.rows.sequences, scoring.tile);
    const int64_t pools =
        std::clamp<int64_t>(blocks / rows, 1, (scoring.key_stride + tile - 1) / tile);
    const dim3 grid(static_cast<unsigned>(pools), static_cast<unsigned>(rows));
    launch_dependent(kernel, grid, scoring.tile * kSplit * 32,
                     index::score_shared(tile, scoring.tile), stream, scoring);
}

// Few rows spread over the device only in small tiles of pools. Many read shared memory least with
// eight pools a thread, but only four rows then fill a multiprocessor evenly. The bits are the
// same. Only the device knows how many tiles there are: blocks walk over them, and one that finds
// none takes time as well.
void score(const index::Scoring& scoring, KernelSet& kernels, LaunchStream stream) {
    const int32_t tiles =
        std::max(scoring.rows.sequences, (scoring.count + scoring.tile - 1) / scoring.tile);
    if (tiles <= 2) {
        launch_scores<2, 1>(scoring, kFewBlocks, kernels, stream);
    } else if (tiles <= 8 || scoring.tile < index::kMostRows) {
        launch_scores<4, 2>(scoring, tiles <= 8 ? kFewBlocks : kManyBlocks, kernels, stream);
    } else {
        launch_scores<8, 1>(scoring, kManyBlocks, kernels, stream);
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

void CudaBackend::index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                             const float* ape, const IndexParams& params, const Rows& rows) {
    contract::index_pool(cache, key, gate, ape, params, rows);
    if (rows.m == 0) return;
    const Pooling pooling = {cache, key, gate, ape, params.pool, params.head_dim, rows};
    launch_dependent(pool_kernel, static_cast<unsigned>(rows.m), kThreads, 0, stream_.get(),
                     pooling);
}

void CudaBackend::index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                               View<const float> weight, const IndexCache& cache,
                               const IndexParams& params, const Rows& rows) {
    contract::index_select(selected, count, query, weight, cache, params, rows);
    if (rows.m == 0) return;
    const int64_t pools = most_pools(cache, params);
    const bool may_rank = pools > params.topk / params.pool;
    const int64_t step = rows_at_once(rows.m, pools);
    Workspace::Scope scope(workspace_);
    auto* keys = scope.take<uint32_t>(may_rank ? step * pools : 0);
    const auto shared = static_cast<int>(params.topk / params.pool * sizeof(int32_t));
    kernels_.allow_shared(index::select_kernel, shared);
    for (int64_t first = 0; first < rows.m; first += step) {
        const auto count_rows = static_cast<int32_t>(std::min(step, rows.m - first));
        if (may_rank) {
            score({query, weight, cache, params, rows, static_cast<int32_t>(first), count_rows,
                   tile_rows(rows, most_rows(kernels_)), keys, pools},
                  kernels_, stream_.get());
        }
        const index::Choosing choosing = {selected, count, params, rows, first, keys, pools};
        launch_dependent(index::select_kernel, static_cast<unsigned>(count_rows),
                         index::kChoiceThreads, shared, stream_.get(), choosing);
    }
}

}  // namespace quadrille::cuda
