// SPDX-License-Identifier: Apache-2.0
// KDA over many rows of few sequences: a thread block has a part of the columns of a head. Some of
// its threads run the recurrence, the others prepare the next rows meanwhile (kda_ahead.cuh). The
// rows of a head are normed once all columns are there.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/kda/kda_ahead.cuh"

namespace quadrille::cuda {

// Rows `row` to `end` of a part, of which those before `own` have no output. to: of row `own`.
template <class S>
__device__ void step_rows(typename S::State& state, const KdaPart<S>& from, int row, int own,
                          int end, int column, float* to, int64_t stride) {
    using State = typename S::State;
#pragma unroll 1
    for (; row < min(own, end); ++row) {
        state.template step<false>(State::keys_of(from, row), from, row, column, nullptr);
    }
    if (row >= end) return;
    to += (row - own) * stride;
    if constexpr (!S::kReadsAhead) {
#pragma unroll 1
        for (; row < end; ++row, to += stride) {
            state.template step<true>(State::keys_of(from, row), from, row, column, to);
        }
        return;
    }
    typename State::Keys next = State::keys_of(from, row);
#pragma unroll 2
    for (; row < end; ++row) {
        const typename State::Keys keys = next;
        next = State::keys_of(from, min(row + 1, end - 1));
        state.template step<true>(keys, from, row, column, to);
        to += stride;
    }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kda_split_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    constexpr int kDim = S::kDim;
    extern __shared__ __align__(16) unsigned char raw[];
    auto& parts = *reinterpret_cast<KdaParts<S>*>(raw);
    __shared__ KdaSequence at;
    KdaRows<kDim, S::kThreads> rows(args, at, nullptr);
    if (!rows.locate()) return;
    const int32_t total = __shfl_sync(0xffffffffu, at.pending + at.count, 0);
    const int32_t turns = (total + kPart - 1) / kPart;
    // The same number in all lanes, as the compiler can tell too: shuffles need no detour then.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp >= (S::kSteps + S::kKeys) / 32) {
        return KdaOthersAhead<S>(args, at, parts).run(turns);
    }
    if (warp >= S::kSteps / 32) {
        return KdaKeysAhead<S>(args, at, parts).run(turns, warp);
    }
    const int first = static_cast<int>(blockIdx.z) * S::kWidth;
    const int column = S::State::column();
    float* state_at = state_of<kDim>(args, at) + first + column;
    const int32_t pending = __shfl_sync(0xffffffffu, at.pending, 0);
    typename S::State state;
    state.load(state_at, at.fresh);
#pragma unroll 1
    for (int32_t turn = -2; turn < turns; ++turn) {
        if (turn >= 0) {
            const int32_t start = turn * kPart;
            const int own = max(0, pending - start);
            step_rows<S>(state, parts.of_turn[turn % 3], 0, own, min(kPart, total - start), column,
                         rows.out(start + own - pending) + first + column + S::State::left(),
                         args.out.stride);
        }
        S::sync();
    }
    state.store(state_at);
}

template <int kDim>
__global__ void __launch_bounds__(kFinishThreads, 4)
    kda_finish_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ KdaSequence at;
    KdaRows<kDim, kFinishThreads> rows(args, at, nullptr);
    if (!rows.locate()) return;
    rows.finish_all();
    const int32_t total = at.pending + at.count;
    if (blockIdx.z == gridDim.z - 1) rows.keep_inputs(total, total);
}

}  // namespace quadrille::cuda
