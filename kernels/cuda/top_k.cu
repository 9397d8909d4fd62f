// SPDX-License-Identifier: Apache-2.0
// The k best columns of a row: chunks of columns first, then what they chose. Few (k <= 16, the
// drafter's candidates) are chosen from registers, more by passes over shared memory. A NaN is
// never chosen; ties go to the lowest column.
#include "kernels/cuda/candidate.cuh"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/launch.h"

namespace quadrille::cuda {

namespace {

constexpr int kChunk = 4096;  // columns of a first-stage block
constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kFewTop = 16;           // the most that the kernels for few choose
constexpr int kFewCandidates = 1024;  // of so many lists' entries at once

// k rounds of "the best that the last one beats" over `count` values; round i to store(i, best).
template <class Load, class Store>
__device__ void select(int64_t k, int32_t count, Candidate* shared, Load load, Store store) {
    Candidate last = {INFINITY, -1};
    for (int64_t i = 0; i < k; ++i) {
        Candidate mine = {0.0f, kNone};
        if (last.column != kNone) {
            for (int32_t c = static_cast<int32_t>(threadIdx.x); c < count; c += kTopThreads) {
                const Candidate other = load(c);
                if (isnan(other.value) || other.column == kNone) continue;
                if (last.beats(other) && other.beats(mine)) mine = other;
            }
        }
        last = block_best<kTopThreads>(mine, shared);
        if (threadIdx.x == 0) store(i, last);
    }
}

// Unsigned order of floats; 0: a NaN, which stands for nothing. Both zeros are one.
__device__ __forceinline__ uint32_t order_key(float value) {
    if (isnan(value)) return 0;
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Candidates in the registers of a warp; a NaN is none.
template <int kPer>
struct Held {
    Candidate at[kPer];

    // The k best in order: store(i, candidate) by the lane that holds it, by the first lane where
    // none is left.
    template <class Store>
    __device__ void select(int k, Store store) {
        for (int i = 0; i < k; ++i) {
            uint32_t best = 0;
            Candidate mine = {NAN, kNone};
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                const uint32_t key = order_key(at[j].value);
                if (key > best || (key == best && best != 0 && at[j].column < mine.column)) {
                    best = key;
                    mine = at[j];
                }
            }
            const uint32_t most = __reduce_max_sync(0xffffffffu, best);
            const int32_t column = best == most ? mine.column : kNone;
            const auto first =
                static_cast<int32_t>(__reduce_min_sync(0xffffffffu, static_cast<uint32_t>(column)));
            if (first == kNone ? threadIdx.x % 32 == 0 : column == first) store(i, mine);
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                if (at[j].column == first) at[j].value = NAN;
            }
        }
    }
};

// What the warps of a block chose, for one of them to choose from.
struct Chosen {
    Candidate of_warp[kTopWarps][kFewTop];
    Candidate best[kFewTop];

    // best: the k best of all that the block holds, for the first warp to read.
    template <int kPer>
    __device__ void choose(Held<kPer>& held, int k) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        held.select(k, [&](int i, const Candidate& mine) { of_warp[warp][i] = mine; });
        __syncthreads();
        if (warp > 0) return;
        Held<kTopWarps * kFewTop / 32> all;
#pragma unroll
        for (int j = 0; j < kTopWarps * kFewTop / 32; ++j) {
            const int entry = j * 32 + lane;
            all.at[j] = entry % kFewTop < k ? of_warp[entry / kFewTop][entry % kFewTop]
                                            : Candidate{NAN, kNone};
        }
        all.select(k, [&](int i, const Candidate& mine) { best[i] = mine; });
        __syncwarp();
    }
};

// As top_chunks_kernel for k <= kFewTop: a warp keeps 512 columns in registers.
__global__ void __launch_bounds__(kTopThreads)
    few_chunks_kernel(Candidate* best, int k, View<const float> logits, int32_t valid) {
    __shared__ Chosen chosen;
    constexpr int kPer = kChunk / kTopThreads;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t first = static_cast<int32_t>(blockIdx.x) * kChunk +
                          static_cast<int32_t>(threadIdx.x) / 32 * kPer * 32 + lane;
    const float* x = logits.data + blockIdx.y * logits.stride;
    Held<kPer> held;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
        const int32_t column = first + j * 32;
        held.at[j] = {column < valid ? x[column] : NAN, column};
    }
    chosen.choose(held, k);
    if (threadIdx.x >= static_cast<unsigned>(k)) return;
    best[(int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * k + lane] = chosen.best[lane];
}

// best (row, chunk, k): the k best of each chunk of columns.
__global__ void __launch_bounds__(kTopThreads)
    top_chunks_kernel(Candidate* best, int64_t k, View<const float> logits, int32_t valid) {
    __shared__ Candidate shared[kTopThreads / 32];
    __shared__ float values[kChunk];
    const int32_t first = static_cast<int32_t>(blockIdx.x) * kChunk;
    const int32_t count = min(kChunk, valid - first);
    const float* x = logits.data + blockIdx.y * logits.stride + first;
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < count; c += kTopThreads) {
        values[c] = x[c];
    }
    __syncthreads();
    Candidate* to = best + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * k;
    select(
        k, count, shared,
        [&](int32_t c) {
            return Candidate{values[c], first + c};
        },
        [&](int64_t i, const Candidate& chosen) { to[i] = chosen; });
}

// The k <= kFewTop best of `count` <= kFewCandidates candidates: load(c) as for select.
template <class Load, class Store>
__device__ void select_few(int k, int32_t count, Load load, Store store) {
    __shared__ Chosen chosen;
    constexpr int kPer = kFewCandidates / kTopThreads;
    Held<kPer> held;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
        const int32_t c = j * kTopThreads + static_cast<int32_t>(threadIdx.x);
        held.at[j] = c < count ? load(c) : Candidate{NAN, kNone};
        if (held.at[j].column == kNone) held.at[j].value = NAN;
    }
    chosen.choose(held, k);
    if (threadIdx.x < static_cast<unsigned>(k)) store(threadIdx.x, chosen.best[threadIdx.x]);
}

// kFew: k <= kFewTop and count <= kFewCandidates.
template <bool kFew, class Load, class Store>
__device__ void choose(int64_t k, int32_t count, Load load, Store store) {
    if constexpr (kFew) {
        select_few(static_cast<int>(k), count, load, store);
    } else {
        __shared__ Candidate shared[kTopThreads / 32];
        select(k, count, shared, load, store);
    }
}
bool is_few(int64_t k, int64_t count) {
    return k <= kFewTop && count <= kFewCandidates;
}

template <bool kFew>
__global__ void __launch_bounds__(kTopThreads)
    top_merge_kernel(View<float> values, View<int32_t> ids, const Candidate* best, int32_t chunks,
                     int32_t first_id) {
    const int64_t k = values.cols;
    const Candidate* from = best + blockIdx.x * chunks * k;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    choose<kFew>(
        k, static_cast<int32_t>(chunks * k), [&](int32_t c) { return from[c]; },
        [&](int64_t i, const Candidate& chosen) {
            value[i] = chosen.column == kNone ? -INFINITY : chosen.value;
            id[i] = chosen.column == kNone ? -1 : first_id + chosen.column;
        });
}

struct Lists {
    const float* values;
    const int32_t* ids;
    int32_t count;
    int64_t stride;
};

// The best of the lists of one row; an id of -1 is nobody.
template <bool kFew>
__global__ void __launch_bounds__(kTopThreads)
    merge_lists_kernel(View<float> values, View<int32_t> ids, Lists lists) {
    const int64_t k = values.cols;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    choose<kFew>(
        k, static_cast<int32_t>(lists.count * k),
        [&](int32_t c) {
            const int64_t at = c / k * lists.stride + blockIdx.x * k + c % k;
            const int32_t owner = lists.ids[at];
            return Candidate{lists.values[at], owner < 0 ? kNone : owner};
        },
        [&](int64_t i, const Candidate& chosen) {
            value[i] = chosen.column == kNone ? -INFINITY : chosen.value;
            id[i] = chosen.column == kNone ? -1 : chosen.column;
        });
}

int32_t chunks_of(int32_t valid) {
    return valid / kChunk + (valid % kChunk != 0 ? 1 : 0);
}

}  // namespace

int64_t top_k_scratch(int64_t rows, int64_t k, int32_t valid) {
    return rows * k * chunks_of(valid) * static_cast<int64_t>(sizeof(Candidate));
}

void top_k(View<float> values, View<int32_t> ids, View<const float> logits, int32_t first_id,
           int32_t valid, void* scratch, cudaStream_t stream) {
    require(valid >= 0 && valid <= logits.cols, "top_k: valid columns inside the row");
    require(values.rows == logits.rows && ids.rows == logits.rows && values.cols == ids.cols,
            "top_k: values and ids are (m, k)");
    if (values.rows == 0 || values.cols == 0) return;
    require(values.rows < 65536, "top_k: fewer than 65536 rows");
    auto* best = static_cast<Candidate*>(scratch);
    const int32_t chunks = chunks_of(valid);
    if (chunks > 0) {
        const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(values.rows));
        if (values.cols <= kFewTop) {
            few_chunks_kernel<<<grid, kTopThreads, 0, stream>>>(best, static_cast<int>(values.cols),
                                                                logits, valid);
        } else {
            top_chunks_kernel<<<grid, kTopThreads, 0, stream>>>(best, values.cols, logits, valid);
        }
        LAUNCH_CHECK();
    }
    const auto merge = is_few(values.cols, chunks * values.cols) ? top_merge_kernel<true>
                                                                 : top_merge_kernel<false>;
    merge<<<static_cast<unsigned>(values.rows), kTopThreads, 0, stream>>>(values, ids, best, chunks,
                                                                          first_id);
    LAUNCH_CHECK();
}

void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                 const int32_t* part_ids, int32_t count, int64_t part_stride, cudaStream_t stream) {
    require(values.rows == ids.rows && values.cols == ids.cols,
            "merge_top_k: values and ids are (m, k)");
    require(count >= 0, "merge_top_k: a number of lists");
    if (values.rows == 0 || values.cols == 0) return;
    const auto merge = is_few(values.cols, count * values.cols) ? merge_lists_kernel<true>
                                                                : merge_lists_kernel<false>;
    merge<<<static_cast<unsigned>(values.rows), kTopThreads, 0, stream>>>(
        values, ids, {part_values, part_ids, count, part_stride});
    LAUNCH_CHECK();
}

}  // namespace quadrille::cuda
