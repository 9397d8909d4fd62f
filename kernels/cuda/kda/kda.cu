// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention with deferred commit (docs/design.md §6). A sequence is one timeline of raw
// rows: convolution history, pending rows, own rows; one loop runs all of them, so a row that is
// decoded, replayed, flushed or prefilled goes through the same instructions. A thread block owns a
// head of a sequence and keeps its state in registers: read once, written once.
// The stored state counts as zero while position == pending: slots are reused uncleared.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kda/kda_split.cuh"

namespace quadrille::cuda {

namespace {

constexpr int kFewHeads = 128;     // of all sequences of a launch
constexpr int kFinishSplits = 16;  // thread blocks that norm the rows of a head
constexpr int kSplitRows = 16;     // of a sequence, from which on that pays
constexpr int kSplitTurns = 2;     // of the device's multiprocessors, or rows must be more:
constexpr int kSplitMany = 128;    // of a sequence (16 of 128 rows: 797 us, 834 without)

// A thread block has a head of a sequence.
template <int kDim, int kColumns>
__global__ void __launch_bounds__(KdaColumns<kDim, kColumns>::kThreads, kColumns / 2)
    kda_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ KdaShared<kDim> shared;
    __shared__ KdaResults<kDim> results;
    __shared__ KdaSequence at;
    KdaRows<kDim, KdaColumns<kDim, kColumns>::kThreads> rows(args, at, &results);
    if (!rows.locate()) return;
    const int32_t total = at.pending + at.count;
    const int column = KdaColumns<kDim, kColumns>::column();
    KdaColumns<kDim, kColumns> state;
    state.load(state_of<kDim>(args, at) + column, at.fresh);
    for (int32_t start = 0; start < total; start += kChunk) {
        const int32_t count = min(kChunk, total - start);
        rows.fill(shared, start, count);
        __syncthreads();
        for (int i = 0; i < count; ++i) {
            if (start + i < at.pending) {
                state.template step<false>(state.keys_of(shared, i), shared, i, column, nullptr);
                continue;
            }
            if (start + i == at.pending && rows.deferred()) {
                state.store(state_of<kDim>(args, at) + column);
            }
            state.template step<true>(state.keys_of(shared, i), shared, i, column,
                                      results.out[i] + column + state.left());
        }
        __syncthreads();
        rows.finish(start, count);
    }
    if (!rows.deferred()) state.store(state_of<kDim>(args, at) + column);
    rows.keep_inputs(rows.deferred() ? at.pending : total, total);
}

template <int kDim, int kSplits>
void launch_split(const KdaArgs& args, dim3 grid, KernelSet& kernels, LaunchStream stream) {
    using S = Split<kDim, kSplits>;
    grid.z = kSplits;
    constexpr auto kShared = static_cast<int>(sizeof(KdaParts<S>));
    kernels.allow_shared(kda_split_kernel<S>, kShared);
    launch_dependent(kda_split_kernel<S>, grid, S::kThreads, kShared, stream, args);
    grid.z = kFinishSplits;
    launch_dependent(kda_finish_kernel<kDim>, grid, kFinishThreads, 0, stream, args);
}

// Few heads: more threads for each. Many: fewer instructions, wider loads.
template <int kDim>
void launch(const KdaArgs& args, int32_t sequences, KernelSet& kernels, LaunchStream stream) {
    const dim3 grid(static_cast<unsigned>(args.params.heads), static_cast<unsigned>(sequences));
    const int64_t heads = int64_t{args.params.heads} * sequences;
    if constexpr (kDim == 128) {
        const bool many_rows = args.rows.m >= int64_t{kSplitRows} * sequences;
        const bool few_taps = args.params.taps <= kSplitTaps;
        if (args.rows.commit && many_rows && few_taps) {
            const int64_t processors = kernels.processors();
            if (heads * 4 <= processors) return launch_split<kDim, 4>(args, grid, kernels, stream);
            if (heads * 2 <= kSplitTurns * processors ||
                args.rows.m >= int64_t{kSplitMany} * sequences) {
                return launch_split<kDim, 2>(args, grid, kernels, stream);
            }
        }
    }
    if (heads <= kFewHeads) {
        launch_dependent(kda_kernel<kDim, 2>, grid, KdaColumns<kDim, 2>::kThreads, 0, stream, args);
    } else {
        launch_dependent(kda_kernel<kDim, 4>, grid, KdaColumns<kDim, 4>::kThreads, 0, stream, args);
    }
}

void launch(const KdaArgs& args, int32_t sequences, KernelSet& kernels, LaunchStream stream) {
    if (sequences == 0) return;
    switch (args.params.head_dim) {
        case 16:
            return launch<16>(args, sequences, kernels, stream);
        case 32:
            return launch<32>(args, sequences, kernels, stream);
        case 64:
            return launch<64>(args, sequences, kernels, stream);
        case 128:
            return launch<128>(args, sequences, kernels, stream);
        default:
            require(false, "kda: head_dim 16, 32, 64 or 128 on a GPU");
    }
}

}  // namespace

void CudaBackend::kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
                      const KdaParams& params, const Rows& rows) {
    contract::kda(pass, weights, state, params, rows);
    const auto& [out, qkv, f, b, g] = pass;
    launch({out, qkv, f, b, g, weights, state, params, rows, false, 0, 0, false}, rows.sequences,
           kernels_, stream_.get());
}

void CudaBackend::kda_flush(const KdaWeights& weights, const KdaState& state,
                            const KdaParams& params, int32_t slot, int32_t pending, bool fresh) {
    contract::kda_flush(weights, state, params, slot, pending, fresh);
    KdaArgs args{};
    args.weights = weights;
    args.state = state;
    args.params = params;
    args.flush = true;
    args.flush_slot = slot;
    args.flush_pending = pending;
    args.flush_fresh = fresh;
    launch(args, 1, kernels_, stream_.get());
}

}  // namespace quadrille::cuda
