// SPDX-License-Identifier: Apache-2.0
// The sparse indexer of an MLA layer: pools of keys, their scores, the positions a row attends to.
// A pool holds nothing but tokens of its own positions, so one written with drafts that were
// rejected later is simply written again when the real tokens come.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exponential.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace quadrille::cpu {

namespace {

// out[c] = sum_j softmax_j(gate[j][c] + ape[j][c]) key[j][c] over the tokens j of one pool.
void pool_tokens(float* out, const float* const* key, const float* const* gate, const float* ape,
                 int32_t pool, int64_t d) {
    for (int64_t c = 0; c < d; ++c) {
        float largest = gate[0][c] + ape[c];
        for (int32_t j = 1; j < pool; ++j) {
            largest = std::max(largest, gate[j][c] + ape[j * d + c]);
        }
        float sum = 0.0f;
        float weighted = 0.0f;
        for (int32_t j = 0; j < pool; ++j) {
            const float weight = exp_of(gate[j][c] + ape[j * d + c] - largest);
            sum += weight;
            weighted += weight * key[j][c];
        }
        out[c] = weighted / sum;
    }
}

// Ascending order of the result is descending score, then ascending pool. A NaN counts as -inf.
uint64_t sort_key(float score, int64_t pool) {
    const float value = std::isnan(score) ? -INFINITY : score + 0.0f;  // -0 becomes 0
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint64_t>(pool);
}

}  // namespace

void CpuBackend::index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                            const float* ape, const IndexParams& params, const Rows& rows) {
    contract::index_pool(cache, key, gate, ape, params, rows);
    const int64_t d = params.head_dim;
    const int64_t pool = params.pool;
    const float* keys[kMaxPool];
    const float* gates[kMaxPool];
    for (int32_t i = 0; i < rows.sequences; ++i) {
        if (rows.slot[i] < 0) continue;
        const int64_t first = rows.begin[i];
        const int64_t position = rows.position[i];
        const int64_t end = position + rows.begin[i + 1] - first;
        require(rows.slot[i] < cache.pools.rows && end / pool * d <= cache.pools.cols,
                "index_pool: the pools fit their slot");
        float* ring = cache.ring.row(rows.slot[i]);
        const auto ring_row = [&](int64_t t) { return ring + t % cache.ring_size * 2 * d; };
        for (int64_t p = position / pool; p < end / pool; ++p) {
            for (int64_t j = 0; j < pool; ++j) {
                const int64_t t = p * pool + j;
                const bool own = t >= position;
                keys[j] = own ? key.row(first + t - position) : ring_row(t);
                gates[j] = own ? gate.row(first + t - position) : ring_row(t) + d;
            }
            pool_tokens(cache.pools.row(rows.slot[i]) + p * d, keys, gates, ape, params.pool, d);
        }
        for (int64_t t = std::max(position, end - cache.ring_size); t < end; ++t) {
            std::copy_n(key.row(first + t - position), d, ring_row(t));
            std::copy_n(gate.row(first + t - position), d, ring_row(t) + d);
        }
    }
}

namespace {

// Moves the `wanted` smallest keys to the front, by ascending pool.
void take_pools(uint64_t* keys, int64_t pools, int64_t wanted) {
    std::nth_element(keys, keys + wanted, keys + pools);
    std::sort(keys, keys + wanted, [](uint64_t a, uint64_t b) {
        return static_cast<uint32_t>(a) < static_cast<uint32_t>(b);
    });
}

// The tokens of the first `wanted` keys' pools, then the visible tokens of the unfinished pool.
int32_t write_positions(int32_t* out, const uint64_t* keys, int64_t wanted, int64_t visible,
                        int32_t pool) {
    int32_t written = 0;
    for (int64_t w = 0; w < wanted; ++w) {
        const auto first = static_cast<int32_t>(static_cast<uint32_t>(keys[w])) * pool;
        for (int32_t j = 0; j < pool; ++j) out[written++] = first + j;
    }
    for (int64_t t = visible / pool * pool; t < visible; ++t) {
        out[written++] = static_cast<int32_t>(t);
    }
    return written;
}

}  // namespace

void CpuBackend::index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                              View<const float> weight, const IndexCache& cache,
                              const IndexParams& params, const Rows& rows) {
    contract::index_select(selected, count, query, weight, cache, params, rows);
    const int64_t d = params.head_dim;
    const int64_t pool = params.pool;
    const int64_t wanted = params.topk / pool;
    PoolScores scoring{.heads = params.heads, .d = d};
    scoring.score_scale = 1.0f / std::sqrt(static_cast<float>(d));
    scoring.head_scale = 1.0f / std::sqrt(static_cast<float>(params.heads));
    for (int32_t i = 0; i < rows.sequences; ++i) {
        const int32_t slot = rows.slot[i];
        for (int64_t r = rows.begin[i]; r < rows.begin[i + 1]; ++r) {
            std::fill_n(selected.row(r), selected.cols, -1);
            const int64_t visible = rows.position[i] + (r - rows.begin[i]) + 1;
            const int64_t pools = visible / pool;
            count[r] = slot < 0 ? 0 : -1;
            if (slot < 0 || pools <= wanted) continue;
            require(slot < cache.pools.rows && pools * d <= cache.pools.cols,
                    "index_select: the pools fit their slot");
            scoring.query = query.row(r);
            scoring.weight = weight.row(r);
            scoring.pools = cache.pools.row(slot);
            scoring.count = pools;
            float* scores = scratch(kScoreScratch, pools);
            sequence_->score_pools(scores, scoring);
            if (std::ssize(pool_keys_) < pools) pool_keys_.resize(static_cast<size_t>(pools));
            for (int64_t p = 0; p < pools; ++p) {
                pool_keys_[static_cast<size_t>(p)] = sort_key(scores[p], p);
            }
            take_pools(pool_keys_.data(), pools, wanted);
            count[r] =
                write_positions(selected.row(r), pool_keys_.data(), wanted, visible, params.pool);
        }
    }
}

}  // namespace quadrille::cpu
