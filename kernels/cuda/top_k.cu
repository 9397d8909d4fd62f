// SPDX-License-Identifier: Apache-2.0
// The k best columns of a row (argmax: the best one): chunks of columns first, then what they
// chose. Few (k <= 16, the drafter's candidates) are chosen from registers, more (those of a row
// with filters) by sorting keys in shared memory. A NaN is never chosen; ties go to the lowest
// column.
#include "kernels/contract.h"
#include "kernels/cuda/candidate.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/launch.h"

namespace quadrille::cuda {

namespace {

constexpr int kChunk = 4096;  // columns of a first-stage block
constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kFewTop = 16;           // the most that the kernels for few choose
constexpr int kFewCandidates = 1024;  // of so many lists' entries at once
constexpr int kSortThreads = 1024;
constexpr int kSortKeys = kChunk;  // in shared memory
constexpr int64_t kMostTop = kSortKeys / 2;

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

// As many_chunks_kernel for k <= kFewTop: a warp keeps 512 columns in registers.
__global__ void __launch_bounds__(kTopThreads)
    few_chunks_kernel(Candidate* best, int k, View<const float> logits, int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
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

// A candidate as a number, larger for a better one: the order of its value, its column from the
// highest down, and whether the value is -0, which ties with 0. 0: nobody.
__device__ __forceinline__ uint64_t key_of(const Candidate& candidate) {
    const uint32_t order = order_key(candidate.value);
    if (order == 0 || candidate.column == kNone) return 0;
    const uint32_t column = static_cast<uint32_t>(INT32_MAX - candidate.column) << 1;
    return uint64_t{order} << 32 | column | (__float_as_uint(candidate.value) == 0x80000000u);
}
__device__ __forceinline__ Candidate candidate_of(uint64_t key) {
    if (key == 0) return {NAN, kNone};
    const auto order = static_cast<uint32_t>(key >> 32);
    const uint32_t bits = (order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order;
    const auto low = static_cast<uint32_t>(key);
    return {(low & 1) != 0 ? -0.0f : __uint_as_float(bits),
            INT32_MAX - static_cast<int32_t>(low >> 1)};
}

// A step of a bitonic sort of `count` keys: runs of `size` fall and rise in turn.
__device__ void exchange(uint64_t* keys, int count, int size, int stride) {
    for (int i = static_cast<int>(threadIdx.x); i < count / 2; i += kSortThreads) {
        const int at = 2 * i - i % stride;
        const uint64_t first = keys[at];
        const uint64_t second = keys[at + stride];
        if ((first < second) == ((at & size) == 0)) {
            keys[at] = second;
            keys[at + stride] = first;
        }
    }
    __syncthreads();
}

// The `run` best of `count` keys to the front, falling; both powers of two. Runs are sorted, then
// of two of them, of which one falls and one rises, the better of every pair is kept.
__device__ void keep_best(uint64_t* keys, int run, int count) {
    for (int size = 2; size <= run; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) exchange(keys, count, size, stride);
    }
    for (int left = count / 2; left >= run; left /= 2) {
        constexpr int kPer = kSortKeys / 2 / kSortThreads;
        uint64_t better[kPer];
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            const int i = j * kSortThreads + static_cast<int>(threadIdx.x);
            const int at = i + i / run * run;
            if (i < left) better[j] = max(keys[at], keys[at + run]);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            const int i = j * kSortThreads + static_cast<int>(threadIdx.x);
            if (i < left) keys[i] = better[j];
        }
        __syncthreads();
        for (int stride = run / 2; stride > 0; stride /= 2) exchange(keys, left, run, stride);
    }
}

// The k <= kMostTop best of `count` candidates load(c): store(i, candidate), nobody where none is
// left. All kSortThreads of a block.
template <class Load, class Store>
__device__ void select_many(int k, int64_t count, Load load, Store store) {
    __shared__ uint64_t keys[kSortKeys];
    int run = 1;
    while (run < k) run *= 2;
    int kept = 0;
    for (int64_t next = 0; next < count || kept == 0;) {
        const auto taken = static_cast<int>(min(count - next, int64_t{kSortKeys - kept}));
        int filled = run;
        while (filled < kept + taken) filled *= 2;
        for (int i = static_cast<int>(threadIdx.x); i < filled - kept; i += kSortThreads) {
            keys[kept + i] = i < taken ? key_of(load(next + i)) : 0;
        }
        __syncthreads();
        keep_best(keys, run, filled);
        next += taken;
        kept = run;
    }
    for (int i = static_cast<int>(threadIdx.x); i < k; i += kSortThreads) {
        store(i, candidate_of(keys[i]));
    }
}

// best (row, chunk, k): the k best of each chunk of columns.
__global__ void __launch_bounds__(kSortThreads)
    many_chunks_kernel(Candidate* best, int k, View<const float> logits, int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int32_t first = static_cast<int32_t>(blockIdx.x) * kChunk;
    const float* x = logits.data + blockIdx.y * logits.stride;
    Candidate* to = best + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * k;
    select_many(
        k, min(kChunk, valid - first),
        [&](int64_t c) {
            const auto column = first + static_cast<int32_t>(c);
            return Candidate{x[column], column};
        },
        [&](int i, const Candidate& chosen) { to[i] = chosen; });
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

// kFew: k <= kFewTop and count <= kFewCandidates, a block of kTopThreads; else one of kSortThreads.
template <bool kFew, class Load, class Store>
__device__ void choose(int64_t k, int64_t count, Load load, Store store) {
    if constexpr (kFew) {
        select_few(static_cast<int>(k), static_cast<int32_t>(count), load, store);
    } else {
        select_many(static_cast<int>(k), count, load, store);
    }
}
template <bool kFew>
constexpr int kChooseThreads = kFew ? kTopThreads : kSortThreads;

bool is_few(int64_t k, int64_t count) {
    return k <= kFewTop && count <= kFewCandidates;
}

template <bool kFew>
__global__ void __launch_bounds__(kChooseThreads<kFew>)
    top_merge_kernel(View<float> values, View<int32_t> ids, const Candidate* best, int32_t chunks,
                     int32_t first_id) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t k = values.cols;
    const Candidate* from = best + blockIdx.x * chunks * k;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    choose<kFew>(
        k, chunks * k, [&](int64_t c) { return from[c]; },
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
__global__ void __launch_bounds__(kChooseThreads<kFew>)
    merge_lists_kernel(View<float> values, View<int32_t> ids, Lists lists) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t k = values.cols;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    choose<kFew>(
        k, lists.count * k,
        [&](int64_t c) {
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

void CudaBackend::argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                         int32_t valid) {
    contract::argmax(value, id, logits, first_id, valid);
    top_k({value, logits.rows, 1}, {id, logits.rows, 1}, logits, first_id, valid);
}

void CudaBackend::top_k(View<float> values, View<int32_t> ids, View<const float> logits,
                        int32_t first_id, int32_t valid) {
    contract::top_k(values, ids, logits, first_id, valid);
    if (values.rows == 0 || values.cols == 0) return;
    require(values.rows < 65536, "top_k: fewer than 65536 rows");
    require(values.cols <= kMostTop, "top_k: at most 2048 of a row");
    const int32_t chunks = chunks_of(valid);
    Workspace::Scope scope(workspace_);
    auto* best = scope.take<Candidate>(values.rows * values.cols * chunks);
    if (chunks > 0) {
        const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(values.rows));
        if (values.cols <= kFewTop) {
            launch_dependent(few_chunks_kernel, grid, kTopThreads, 0, stream_.get(), best,
                             static_cast<int>(values.cols), logits, valid);
        } else {
            launch_dependent(many_chunks_kernel, grid, kSortThreads, 0, stream_.get(), best,
                             static_cast<int>(values.cols), logits, valid);
        }
    }
    const bool few = is_few(values.cols, chunks * values.cols);
    const auto merge = few ? top_merge_kernel<true> : top_merge_kernel<false>;
    launch_dependent(merge, static_cast<unsigned>(values.rows), few ? kTopThreads : kSortThreads, 0,
                     stream_.get(), values, ids, best, chunks, first_id);
}

void CudaBackend::merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                              const int32_t* part_ids, int32_t count, int64_t part_stride) {
    contract::merge_top_k(values, ids, part_values, part_ids, count, part_stride);
    require(values.cols <= kMostTop, "merge_top_k: at most 2048 of a row");
    if (values.rows == 0 || values.cols == 0) return;
    const bool few = is_few(values.cols, count * values.cols);
    const auto merge = few ? merge_lists_kernel<true> : merge_lists_kernel<false>;
    launch_dependent(merge, static_cast<unsigned>(values.rows), few ? kTopThreads : kSortThreads, 0,
                     stream_.get(), values, ids, Lists{part_values, part_ids, count, part_stride});
}

}  // namespace quadrille::cuda
