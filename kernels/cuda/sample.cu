// SPDX-License-Identifier: Apache-2.0
// Draws from rows of logits. The arithmetic of one column (kernels/sample_row.h, noise.h,
// exp_sum.h) is shared with the CPU and exact in the same way, so results have the same bits.
#include "kernels/contract.h"
#include "kernels/cuda/candidate.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/sample_row.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kBatch = 8;
constexpr int kSumThreads = 256;

using Draw = CandidateOf<double>;  // a column and its score

__global__ void mark_seen_kernel(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                                 int32_t count) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const auto i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const auto id = static_cast<uint32_t>(tokens[i]);
    if (slots[i] < 0 || slots[i] >= seen.rows || tokens[i] < 0 || id / 32 >= seen.cols) return;
    atomicOr(seen.data + slots[i] * seen.stride + id / 32, 1u << (id % 32));
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(double* score, int32_t* id, float* logit, View<const float> logits,
                  const SampleRow* rows, View<const int32_t> excluded, int32_t first_id,
                  int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t i = blockIdx.x;
    const SampleRow row = rows[i];
    const float* x = logits.data + row.row * logits.stride;
    const auto skips = [&](int32_t c) {
        for (int64_t j = 0; j < excluded.cols; ++j) {
            if (excluded.data[i * excluded.stride + j] == first_id + c) return true;
        }
        return false;
    };
    Draw best = {0.0, kNone};
    const auto offer = [&](int32_t c, double value) {
        const Draw other = {value, c};
        if (other.beats(best) && !skips(c)) best = other;
    };
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const bool greedy = row.inverse_temperature == 0.0;
    // Without noise a row is bound by its loads: those of a batch go out together.
    for (int32_t c = thread; greedy && c < valid; c += kBatch * kThreads) {
        float part[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) part[i] = x[min(c + i * kThreads, valid - 1)];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int32_t j = c + i * kThreads;
            if (j >= valid) break;
            const float value = logit_of(row, part[i], first_id + j);
            if (!isnan(value)) offer(j, static_cast<double>(value));
        }
    }
    for (int32_t c = 2 * thread; !greedy && c < valid; c += 2 * kThreads) {
        const NoiseBits bits = noise_bits(row.seed, row.position, row.stream,
                                          static_cast<uint32_t>(first_id + c) >> 1);
        for (int32_t j = c; j < min(c + 2, valid); ++j) {
            const float value = logit_of(row, x[j], first_id + j);
            if (!(value > -INFINITY)) continue;
            const uint64_t noise = j == c ? bits.even : bits.odd;
            const double base = scaled(static_cast<double>(value), row.inverse_temperature);
            if (best.column != kNone && ieee::add(base, gumbel_bound(noise)) < best.value) continue;
            offer(j, ieee::add(base, gumbel_of(noise)));
        }
    }
    best = block_best<kThreads>(best);
    if (threadIdx.x != 0) return;
    const bool found = best.column != kNone;
    score[i] = found ? best.value : -INFINITY;
    id[i] = found ? first_id + best.column : -1;
    logit[i] = found ? x[best.column] : -INFINITY;
}

// out (count, valid): l', NaN for what is never a candidate.
__global__ void penalize_kernel(float* out, View<const float> logits, const SampleRow* rows,
                                int32_t first_id, int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const auto c = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= valid) return;
    const SampleRow& row = rows[blockIdx.y];
    const float value = logit_of(row, logits.data[row.row * logits.stride + c], first_id + c);
    out[int64_t{blockIdx.y} * valid + c] = value > -INFINITY ? value : NAN;
}

__global__ void raw_kernel(View<float> raw, View<const int32_t> ids, View<const float> logits,
                           const SampleRow* rows, int32_t first_id) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t i = blockIdx.x;
    for (int64_t j = threadIdx.x; j < ids.cols; j += blockDim.x) {
        const int32_t id = ids.data[i * ids.stride + j];
        raw.data[i * raw.stride + j] =
            id < 0 ? -INFINITY : logits.data[rows[i].row * logits.stride + id - first_id];
    }
}

__global__ void __launch_bounds__(kSumThreads)
    sample_sum_kernel(ExpSum* sums, View<const float> logits, const SampleRow* rows,
                      int32_t first_id, int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ ExpSum shared[kSumThreads];
    const int64_t i = blockIdx.x;
    const SampleRow row = rows[i];
    const double inverse = row.inverse_temperature == 0.0 ? 1.0 : row.inverse_temperature;
    const float* x = logits.data + row.row * logits.stride;
    ExpSum sum;
    for (auto c = static_cast<int32_t>(threadIdx.x); c < valid; c += kSumThreads) {
        sum.add(weight_of(static_cast<double>(logit_of(row, x[c], first_id + c)), inverse));
    }
    shared[threadIdx.x] = sum;
    for (unsigned half = kSumThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x].add(shared[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) sums[i] = shared[0];
}

__global__ void sample_at_kernel(View<float> values, View<float> raw, View<const int32_t> ids,
                                 View<const float> logits, const SampleRow* rows, int32_t first_id,
                                 int32_t valid) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t i = blockIdx.x;
    for (int64_t j = threadIdx.x; j < ids.cols; j += blockDim.x) {
        const int32_t id = ids.data[i * ids.stride + j];
        const bool here = id >= first_id && id - first_id < valid;
        const float x = here ? logits.data[rows[i].row * logits.stride + id - first_id] : NAN;
        raw.data[i * raw.stride + j] = x;
        values.data[i * values.stride + j] = here ? logit_of(rows[i], x, id) : x;
    }
}

}  // namespace

void CudaBackend::mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                            int32_t count) {
    contract::mark_seen(seen, slots, tokens, count);
    if (count == 0) return;
    launch_dependent(mark_seen_kernel, static_cast<unsigned>((count + 255) / 256), 256, 0,
                     stream_.get(), seen, slots, tokens, count);
}

void CudaBackend::sample(double* score, int32_t* id, float* logit, const SampleInput& in,
                         View<const int32_t> excluded) {
    contract::sample(score, id, logit, in, excluded);
    const auto& [logits, rows, count, first_id, valid] = in;
    if (count == 0) return;
    launch_dependent(sample_kernel, static_cast<unsigned>(count), kThreads, 0, stream_.get(), score,
                     id, logit, logits, rows, excluded, first_id, valid);
}

void CudaBackend::sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                                    const SampleInput& in) {
    contract::sample_candidates(values, raw, ids, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    if (count == 0) return;
    Workspace::Scope scope(workspace_);
    auto* penalized = scope.take<float>(int64_t{count} * valid);
    if (valid > 0) {
        const dim3 grid(static_cast<unsigned>((valid + 255) / 256), static_cast<unsigned>(count));
        launch_dependent(penalize_kernel, grid, 256, 0, stream_.get(), penalized, logits, rows,
                         first_id, valid);
    }
    top_k(values.slice_rows(0, count), ids.slice_rows(0, count), {penalized, count, valid},
          first_id, valid);
    launch_dependent(raw_kernel, static_cast<unsigned>(count), 256, 0, stream_.get(), raw, ids,
                     logits, rows, first_id);
}

void CudaBackend::sample_sum(ExpSum* sums, const SampleInput& in) {
    contract::sample_sum(sums, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    if (count == 0) return;
    launch_dependent(sample_sum_kernel, static_cast<unsigned>(count), kSumThreads, 0, stream_.get(),
                     sums, logits, rows, first_id, valid);
}

void CudaBackend::sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                            const SampleInput& in) {
    contract::sample_at(values, raw, ids, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    if (count == 0 || ids.cols == 0) return;
    launch_dependent(sample_at_kernel, static_cast<unsigned>(count), 256, 0, stream_.get(), values,
                     raw, ids, logits, rows, first_id, valid);
}

}  // namespace quadrille::cuda
