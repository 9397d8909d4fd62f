// SPDX-License-Identifier: Apache-2.0
// The choice of experts. A NaN is never chosen; ties go to the lowest expert.
#include "kernels/contract.h"
#include "kernels/cuda/candidate.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

namespace quadrille::cuda {

namespace {

constexpr int kRouteWarps = 4;
constexpr int kFewPer = 16;  // experts of a lane, the most of route_few_kernel
constexpr int kFewSlots = 32;

// The next best of a warp's scores: their order keys, of experts j * 32 + lane. Takes its key away,
// and returns the expert; ties go to the lowest.
template <int kPer>
__device__ int32_t take_best(uint32_t (&keys)[kPer]) {
    uint32_t best = keys[0];
#pragma unroll
    for (int j = 1; j < kPer; ++j) best = max(best, keys[j]);
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    uint32_t mine = kNone;
#pragma unroll
    for (int j = kPer - 1; j >= 0; --j) {
        if (keys[j] == most)
            mine = static_cast<uint32_t>(j * 32 + static_cast<int>(threadIdx.x) % 32);
    }
    const auto expert = static_cast<int32_t>(__reduce_min_sync(0xffffffffu, mine));
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
        if (j * 32 + static_cast<int>(threadIdx.x) % 32 == expert) keys[j] = 0;
    }
    return expert;
}

// route_kernel for up to 32 kPer experts and kFewSlots slots: scores stay in registers, and the
// bias is under way before the kernel that makes the logits has ended.
template <int kPer>
__global__ void __launch_bounds__(kRouteWarps * 32)
    route_few_kernel(View<int32_t> ids, View<float> weights, View<const float> logits,
                     const float* bias, float scale, const Rows rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto count = static_cast<int32_t>(logits.cols);
    float bias_of[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) bias_of[j] = bias[min(j * 32 + lane, count - 1)];
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / 32;
    if (row >= ids.rows) return;
    const auto slots = static_cast<int>(ids.cols);
    int32_t* id = ids.data + row * ids.stride;
    float* weight = weights.data + row * weights.stride;
    const float* x = logits.data + row * logits.stride;
    float score[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) score[j] = x[min(j * 32 + lane, count - 1)];
    if (rows.m > 0 && rows.slot[rows.row_sequence[row]] < 0) {
        if (lane < slots) id[lane] = -1;
        if (lane < slots) weight[lane] = 0.0f;
        return;
    }
    uint32_t keys[kPer];  // 0: none, below that of every number
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
        score[j] = sigmoid(score[j]);
        const float value = score[j] + bias_of[j];
        keys[j] = j * 32 + lane >= count ? 0u : order_key(isnan(value) ? -INFINITY : value);
    }
    int32_t chosen = 0;  // of the lane's slot
    float mine = 0.0f;
    float total = 0.0f;
    for (int slot = 0; slot < slots; ++slot) {
        const int32_t expert = take_best(keys);
        float own = 0.0f;
#pragma unroll
        for (int j = 0; j < kPer; ++j) own = expert / 32 == j ? score[j] : own;
        const float probability = __shfl_sync(0xffffffffu, own, expert % 32);
        total += probability;
        if (lane != slot) continue;
        chosen = expert;
        mine = probability;
    }
    if (lane >= slots) return;
    id[lane] = chosen;
    weight[lane] = mine / (total + 1e-20f) * scale;
}

// A warp per row. A NaN score counts as -inf: never chosen before a number, never chosen twice.
__global__ void __launch_bounds__(kRouteWarps * 32)
    route_kernel(View<int32_t> ids, View<float> weights, View<const float> logits,
                 const float* __restrict__ bias, float scale, const Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ float biased_of_warps[];
    const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / 32;
    if (row >= ids.rows) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (rows.m > 0 && rows.slot[rows.row_sequence[row]] < 0) {
        for (int64_t slot = lane; slot < ids.cols; slot += 32) {
            ids.data[row * ids.stride + slot] = -1;
            weights.data[row * weights.stride + slot] = 0.0f;
        }
        return;
    }
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

}  // namespace

void CudaBackend::route(View<int32_t> ids, View<float> weights, View<const float> logits,
                        const float* bias, float scale, const Rows& rows) {
    contract::route(ids, weights, logits, bias, scale, rows);
    require(logits.cols <= 3072, "route: at most 3072 experts");
    if (ids.rows == 0 || ids.cols == 0) return;
    const auto blocks = static_cast<unsigned>((ids.rows + kRouteWarps - 1) / kRouteWarps);
    if (logits.cols <= 32 * kFewPer && ids.cols <= kFewSlots) {
        // The fewest registers that hold them: 9 for the full model's 288.
        const auto kernel = logits.cols <= 32 * 4   ? route_few_kernel<4>
                            : logits.cols <= 32 * 9 ? route_few_kernel<9>
                                                    : route_few_kernel<kFewPer>;
        launch_dependent(kernel, blocks, kRouteWarps * 32, 0, stream_.get(), ids, weights, logits,
                         bias, scale, rows);
        return;
    }
    const auto shared =
        static_cast<int>(logits.cols * kRouteWarps * static_cast<int64_t>(sizeof(float)));
    launch_dependent(route_kernel, blocks, kRouteWarps * 32, shared, stream_.get(), ids, weights,
                     logits, bias, scale, rows);
}

}  // namespace quadrille::cuda
