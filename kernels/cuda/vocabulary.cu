// SPDX-License-Identifier: Apache-2.0
// Choice among the columns of a row: argmax, top_k, and the router. A NaN is never chosen; ties go
// to the lowest column.
#include "kernels/cuda/handles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

#include <cfloat>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kChunk = 4096;  // columns of a first-stage block of top_k
constexpr int kTopThreads = 256;
constexpr int kRouteWarps = 4;
constexpr int32_t kNone = INT32_MAX;

// The better of two candidates: the larger value, then the lower column. kNone loses to all.
struct Candidate {
    float value;
    int32_t column;

    __device__ bool beats(const Candidate& other) const {
        if (column == kNone || other.column == kNone) return column != kNone;
        return value > other.value || (value == other.value && column < other.column);
    }
};

__device__ Candidate warp_best(Candidate mine) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, stride),
                                 __shfl_xor_sync(0xffffffffu, mine.column, stride)};
        if (other.beats(mine)) mine = other;
    }
    return mine;
}

template <int kCount>
__device__ Candidate block_best(Candidate mine, Candidate* shared) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Candidate best = lane < kCount / 32 ? shared[lane] : Candidate{0.0f, kNone};
    best = warp_best(best);
    __syncthreads();
    return best;
}

__global__ void __launch_bounds__(kThreads)
    argmax_kernel(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                  int32_t valid) {
    __shared__ Candidate shared[kThreads / 32];
    const float* x = logits.data + blockIdx.x * logits.stride;
    Candidate mine = {0.0f, kNone};
    constexpr int kBatch = 8;
    for (int32_t first = static_cast<int32_t>(threadIdx.x); first < valid;
         first += kBatch * kThreads) {
        float part[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int32_t c = first + i * kThreads;
            part[i] = c < valid ? x[c] : NAN;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const Candidate other = {part[i], first + i * kThreads};
            if (!isnan(other.value) && other.beats(mine)) mine = other;
        }
    }
    const Candidate best = block_best<kThreads>(mine, shared);
    if (threadIdx.x == 0) {
        value[blockIdx.x] = best.column == kNone ? -INFINITY : best.value;
        id[blockIdx.x] = best.column == kNone ? -1 : first_id + best.column;
    }
}

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

__global__ void __launch_bounds__(kTopThreads)
    top_merge_kernel(View<float> values, View<int32_t> ids, const Candidate* best, int32_t chunks,
                     int32_t first_id) {
    __shared__ Candidate shared[kTopThreads / 32];
    const int64_t k = values.cols;
    const Candidate* from = best + blockIdx.x * chunks * k;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    select(
        k, static_cast<int32_t>(chunks * k), shared, [&](int32_t c) { return from[c]; },
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
__global__ void __launch_bounds__(kTopThreads)
    merge_lists_kernel(View<float> values, View<int32_t> ids, Lists lists) {
    __shared__ Candidate shared[kTopThreads / 32];
    const int64_t k = values.cols;
    float* value = values.data + blockIdx.x * values.stride;
    int32_t* id = ids.data + blockIdx.x * ids.stride;
    select(
        k, static_cast<int32_t>(lists.count * k), shared,
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

// A warp per row. A NaN score counts as -inf: never chosen before a number, never chosen twice.
__global__ void __launch_bounds__(kRouteWarps * 32)
    route_kernel(View<int32_t> ids, View<float> weights, View<const float> logits,
                 const float* __restrict__ bias, float scale) {
    extern __shared__ float biased_of_warps[];
    const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / 32;
    if (row >= ids.rows) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto count = static_cast<int32_t>(logits.cols);
    const float* x = logits.data + row * logits.stride;
    float* biased = biased_of_warps + threadIdx.x / 32 * count;
    for (int32_t e = lane; e < count; e += 32) {
        const float value = sigmoid(x[e]) + bias[e];
        biased[e] = isnan(value) ? -INFINITY : value;
    }
    __syncwarp();
    int32_t* id = ids.data + row * ids.stride;
    float* weight = weights.data + row * weights.stride;
    float total = 0.0f;
    for (int64_t slot = 0; slot < ids.cols; ++slot) {
        Candidate mine = {0.0f, kNone};
        for (int32_t e = lane; e < count; e += 32) {
            const Candidate other = {biased[e], e};
            if (!isnan(other.value) && other.beats(mine)) mine = other;
        }
        const Candidate best = warp_best(mine);
        __syncwarp();
        if (lane == 0) {
            biased[best.column] = NAN;  // taken
            id[slot] = best.column;
            weight[slot] = sigmoid(x[best.column]);
        }
        total += sigmoid(x[best.column]);
        __syncwarp();
    }
    if (lane == 0) {
        for (int64_t slot = 0; slot < ids.cols; ++slot) {
            weight[slot] = weight[slot] / (total + 1e-20f) * scale;
        }
    }
}

int32_t chunks_of(int32_t valid) {
    return valid / kChunk + (valid % kChunk != 0 ? 1 : 0);
}

}  // namespace

void argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id, int32_t valid,
            cudaStream_t stream) {
    require(valid >= 0 && valid <= logits.cols, "argmax: valid columns inside the row");
    if (logits.rows == 0) return;
    argmax_kernel<<<static_cast<unsigned>(logits.rows), kThreads, 0, stream>>>(value, id, logits,
                                                                               first_id, valid);
    LAUNCH_CHECK();
}

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
        top_chunks_kernel<<<grid, kTopThreads, 0, stream>>>(best, values.cols, logits, valid);
        LAUNCH_CHECK();
    }
    top_merge_kernel<<<static_cast<unsigned>(values.rows), kTopThreads, 0, stream>>>(
        values, ids, best, chunks, first_id);
    LAUNCH_CHECK();
}

void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                 const int32_t* part_ids, int32_t count, int64_t part_stride, cudaStream_t stream) {
    require(values.rows == ids.rows && values.cols == ids.cols,
            "merge_top_k: values and ids are (m, k)");
    require(count >= 0, "merge_top_k: a number of lists");
    if (values.rows == 0 || values.cols == 0) return;
    merge_lists_kernel<<<static_cast<unsigned>(values.rows), kTopThreads, 0, stream>>>(
        values, ids, {part_values, part_ids, count, part_stride});
    LAUNCH_CHECK();
}

void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
           float scale, cudaStream_t stream) {
    require(ids.cols <= logits.cols, "route: at most as many slots as experts");
    require(ids.rows == logits.rows && weights.rows == logits.rows && weights.cols == ids.cols,
            "route: ids and weights are (m, topk)");
    require(logits.cols <= 3072, "route: at most 3072 experts");
    if (ids.rows == 0 || ids.cols == 0) return;
    const auto blocks = static_cast<unsigned>((ids.rows + kRouteWarps - 1) / kRouteWarps);
    const size_t shared = static_cast<size_t>(logits.cols) * kRouteWarps * sizeof(float);
    route_kernel<<<blocks, kRouteWarps * 32, shared, stream>>>(ids, weights, logits, bias, scale);
    LAUNCH_CHECK();
}

}  // namespace quadrille::cuda
