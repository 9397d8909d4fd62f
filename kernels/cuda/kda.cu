// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention with deferred commit (docs/design.md §6). A sequence is one timeline of raw
// rows: convolution history, pending rows, own rows; one loop runs all of them, so a row that is
// decoded, replayed, flushed or prefilled goes through the same instructions. A thread block owns a
// head of a sequence and keeps its state in registers: read once, written once.
// The stored state counts as zero while position == pending: slots are reused uncleared.
//
// A warp owns columns (values) of the state with its keys over the lanes: rows follow one another
// without a barrier. Each sum over the keys has one order, whatever the number of columns of a
// thread: a chain over the keys of a lane, then a tree over the lanes.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/kda_rows.cuh"

namespace quadrille::cuda {

namespace {

constexpr int kKeyLanes = 8;    // lanes that share a column of the state
constexpr int kFewHeads = 128;  // of all sequences of a launch
constexpr int kSplits = 4;      // thread blocks that share the columns of a head
constexpr int kSplitRows = 16;  // of a sequence, from which on that pays

// A thread's part of the state: kColumns neighbouring columns, the keys of a lane.
template <int kDim, int kColumns>
class KdaColumns {
  public:
    static constexpr int kThreads = kDim / kColumns * kKeyLanes;  // for all columns
    static constexpr int kKeys = kDim / kKeyLanes;  // of a lane: kRun neighbours at a time
    static constexpr int kRun = kKeys < 4 ? kKeys : 4;

    // first: column of the state where the thread block begins.
    static __device__ int column(int first) {
        const int thread = static_cast<int>(threadIdx.x);
        return first + (thread / 32 * (32 / kKeyLanes) + thread % 32 / kKeyLanes) * kColumns;
    }

    // All loads are under way before any is waited for.
    __device__ void load(const float* from, bool fresh) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) s_of_key_[i] = {};
        if (fresh) return;
        if (aligned(from)) {
#pragma unroll
            for (int i = 0; i < kKeys; ++i) {
                s_of_key_[i] = load_wide(from + key(i) * kDim);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) s_of_key_[i].x[c] = from[key(i) * kDim + c];
        }
    }
    __device__ void store(float* to) const {
        if (aligned(to)) {
#pragma unroll
            for (int i = 0; i < kKeys; ++i) {
                store_wide(to + key(i) * kDim, s_of_key_[i]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) to[key(i) * kDim + c] = s_of_key_[i].x[c];
        }
    }

    // S = diag(decay) S; S += k d^T with d = beta (v - S^T k); out = S^T q, taken as the product
    // with the decayed state plus (q k) d: both sums over the keys are under way together.
    // A row that is only replayed has no output. to: output row of the head; column: as column().
    template <bool kOwn>
    __device__ void step(const KdaShared<kDim>& from, int row, int column, float* to) {
        float read[kColumns] = {};
        float out[kColumns] = {};
        float k[kKeys];
#pragma unroll
        for (int r = 0; r < kKeys; r += kRun) {
            const Run decay = run_of(from.decay[row], r);
            const Run keys = run_of(from.qkv[1][row], r);
            Run q = {};
            if (kOwn) q = run_of(from.qkv[0][row], r);
#pragma unroll
            for (int i = 0; i < kRun; ++i) {
                k[r + i] = keys.x[i];
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    float& s = s_of_key_[r + i].x[c];
                    s *= decay.x[i];
                    read[c] = fmaf(keys.x[i], s, read[c]);
                    if (kOwn) out[c] = fmaf(q.x[i], s, out[c]);
                }
            }
        }
        const Columns v = *reinterpret_cast<const Columns*>(&from.qkv[2][row][column]);
        const float beta = from.beta[row];
        float delta[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) delta[c] = beta * (v.x[c] - lane_sum(read[c]));
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                s_of_key_[i].x[c] = fmaf(k[i], delta[c], s_of_key_[i].x[c]);
            }
        }
        if (!kOwn) return;
        const float product = from.q_dot_k[row];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const float result = fmaf(product, delta[c], lane_sum(out[c]));
            if (threadIdx.x % kKeyLanes == 0) to[column + c] = result;
        }
    }

  private:
    struct alignas(4 * kColumns) Columns {
        float x[kColumns];
    };
    struct alignas(4 * kRun) Run {
        float x[kRun];
    };

    // One instruction each, which the copy of a struct need not be. Nothing is read twice.
    static __device__ Columns load_wide(const float* from) {
        if constexpr (kColumns == 4) {
            const float4 in = __ldcg(reinterpret_cast<const float4*>(from));
            return {{in.x, in.y, in.z, in.w}};
        } else {
            static_assert(kColumns == 2);
            const float2 in = __ldcg(reinterpret_cast<const float2*>(from));
            return {{in.x, in.y}};
        }
    }
    static __device__ void store_wide(float* to, const Columns& from) {
        if constexpr (kColumns == 4) {
            __stcg(reinterpret_cast<float4*>(to),
                   make_float4(from.x[0], from.x[1], from.x[2], from.x[3]));
        } else {
            static_assert(kColumns == 2);
            __stcg(reinterpret_cast<float2*>(to), make_float2(from.x[0], from.x[1]));
        }
    }
    static __device__ bool aligned(const float* at) {
        return reinterpret_cast<uintptr_t>(at) % sizeof(Columns) == 0;
    }
    // Key i of this lane: the lanes read kRun neighbours each, side by side.
    static __device__ int key(int i) {
        return i / kRun * kRun * kKeyLanes + static_cast<int>(threadIdx.x) % kKeyLanes * kRun +
               i % kRun;
    }
    __device__ static Run run_of(const float* row, int i) {
        return *reinterpret_cast<const Run*>(row + key(i));
    }
    __device__ static float lane_sum(float x) {
#pragma unroll
        for (int stride = kKeyLanes / 2; stride > 0; stride /= 2) {
            x += __shfl_xor_sync(0xffffffffu, x, stride);
        }
        return x;
    }

    Columns s_of_key_[kKeys];
};

template <int kDim>
__device__ float* state_of(const KdaArgs& args, const KdaSequence& at) {
    return args.state.state.data + int64_t{at.slot} * args.state.state.stride +
           int64_t{blockIdx.x} * kDim * kDim;
}

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
    const int column = KdaColumns<kDim, kColumns>::column(0);
    KdaColumns<kDim, kColumns> state;
    state.load(state_of<kDim>(args, at) + column, at.fresh);
    for (int32_t start = 0; start < total; start += kChunk) {
        const int32_t count = min(kChunk, total - start);
        rows.fill(shared, start, count);
        __syncthreads();
        for (int i = 0; i < count; ++i) {
            if (start + i < at.pending) {
                state.template step<false>(shared, i, column, nullptr);
                continue;
            }
            if (start + i == at.pending && rows.deferred()) {
                state.store(state_of<kDim>(args, at) + column);
            }
            state.template step<true>(shared, i, column, results.out[i]);
        }
        __syncthreads();
        rows.finish(start, count);
    }
    if (!rows.deferred()) state.store(state_of<kDim>(args, at) + column);
    rows.keep_inputs(rows.deferred() ? at.pending : total, total);
}

// A thread block has a part of the columns of a head: kSteps threads run the recurrence, the others
// prepare the next rows meanwhile. The rows of a head are normed once all columns are there.
template <int kDim>
struct Split {
    static constexpr int kWidth = kDim / kSplits;
    static constexpr int kSteps = KdaColumns<kDim, 2>::kThreads / kSplits;
    static constexpr int kPrepare = 3 * kDim + kWidth;
    static constexpr int kFinish = 256;
};
template <int kDim>
__global__ void __launch_bounds__(Split<kDim>::kSteps + Split<kDim>::kPrepare, 1)
    kda_split_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    using S = Split<kDim>;
    __shared__ KdaShared<kDim> chunks[2];
    __shared__ KdaSequence at;
    KdaRows<kDim, S::kPrepare, S::kSteps, S::kWidth> rows(args, at, nullptr);
    if (!rows.locate()) return;
    const int32_t total = at.pending + at.count;
    const bool steps = threadIdx.x < S::kSteps;
    const int column = KdaColumns<kDim, 2>::column(rows.first_column());
    KdaColumns<kDim, 2> state;
    if (steps) state.load(state_of<kDim>(args, at) + column, at.fresh);
    for (int32_t start = -kChunk; start < total; start += kChunk) {
        const int turn = start / kChunk & 1;
        const int32_t next = start + kChunk;
        const bool fills = next < total;
        if (!steps) {
            if (fills) rows.fill(chunks[turn ^ 1], next, min(kChunk, total - next));
        } else {
            for (int i = 0; i < kChunk; ++i) {
                if (fills && (i == kChunk / 3 || i == 2 * kChunk / 3)) rows.sync();  // of fill
                const int32_t own = start + i - at.pending;
                if (start < 0 || start + i >= total) continue;
                if (own < 0) {
                    state.template step<false>(chunks[turn], i, column, nullptr);
                } else {
                    state.template step<true>(chunks[turn], i, column, rows.out(own));
                }
            }
        }
        __syncthreads();
    }
    if (steps) state.store(state_of<kDim>(args, at) + column);
}
template <int kDim>
__global__ void __launch_bounds__(Split<kDim>::kFinish, 2)
    kda_finish_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ KdaSequence at;
    KdaRows<kDim, Split<kDim>::kFinish> rows(args, at, nullptr);
    if (!rows.locate()) return;
    rows.finish_all();
    const int32_t total = at.pending + at.count;
    if (blockIdx.z == 0) rows.keep_inputs(total, total);
}

void check_state(const KdaState& state, const KdaParams& params) {
    const int64_t c = int64_t{params.heads} * params.head_dim;
    require(params.heads > 0 && params.head_dim > 0, "kda: heads and head_dim are positive");
    require(params.taps > 0 && params.taps <= kMaxTaps, "kda: 1..8 convolution taps");
    const int64_t rows = state.pending_beta.cols / params.heads;
    require(state.state.cols == c * params.head_dim && state.conv.cols == (params.taps - 1) * 3 * c,
            "kda: state (slots, heads d d), conv (slots, (taps - 1) 3c)");
    require(state.pending_qkv.cols == rows * 3 * c && state.pending_decay.cols == rows * c &&
                state.pending_beta.cols == rows * params.heads,
            "kda: pending buffers hold the same number of rows");
}

// Few heads: more threads for each. Many: fewer instructions, wider loads.
template <int kDim>
void launch(const KdaArgs& args, int32_t sequences, LaunchStream stream) {
    dim3 grid(static_cast<unsigned>(args.params.heads), static_cast<unsigned>(sequences));
    const int64_t heads = int64_t{args.params.heads} * sequences;
    if constexpr (kDim == 128) {
        const bool many_rows = args.rows.m >= int64_t{kSplitRows} * sequences;
        if (args.rows.commit && many_rows && heads * kSplits <= kFewHeads) {
            using S = Split<kDim>;
            grid.z = kSplits;
            launch_dependent(kda_split_kernel<kDim>, grid, S::kSteps + S::kPrepare, 0, stream,
                             args);
            grid.z = 8;
            launch_dependent(kda_finish_kernel<kDim>, grid, S::kFinish, 0, stream, args);
            return;
        }
    }
    if (heads <= kFewHeads) {
        launch_dependent(kda_kernel<kDim, 2>, grid, KdaColumns<kDim, 2>::kThreads, 0, stream, args);
    } else {
        launch_dependent(kda_kernel<kDim, 4>, grid, KdaColumns<kDim, 4>::kThreads, 0, stream, args);
    }
}

void launch(const KdaArgs& args, int32_t sequences, LaunchStream stream) {
    if (sequences == 0) return;
    switch (args.params.head_dim) {
        case 16:
            return launch<16>(args, sequences, stream);
        case 32:
            return launch<32>(args, sequences, stream);
        case 64:
            return launch<64>(args, sequences, stream);
        case 128:
            return launch<128>(args, sequences, stream);
        default:
            require(false, "kda: head_dim 16, 32, 64 or 128 on a GPU");
    }
}

}  // namespace

void kda(View<float> out, View<const float> qkv, View<const float> f, View<const float> b,
         View<const float> g, const KdaWeights& weights, const KdaState& state,
         const KdaParams& params, const Rows& rows, LaunchStream stream) {
    check_state(state, params);
    const int64_t c = int64_t{params.heads} * params.head_dim;
    require(out.rows == rows.m && qkv.rows == rows.m && f.rows == rows.m && b.rows == rows.m &&
                g.rows == rows.m && out.cols == c && qkv.cols == 3 * c && f.cols == c &&
                b.cols == params.heads && g.cols == c,
            "kda: out, f, g (m, c), qkv (m, 3c), b (m, heads)");
    launch({out, qkv, f, b, g, weights, state, params, rows, false, 0, 0, false}, rows.sequences,
           stream);
}

void kda_flush(const KdaWeights& weights, const KdaState& state, const KdaParams& params,
               int32_t slot, int32_t pending, bool fresh, LaunchStream stream) {
    check_state(state, params);
    require(slot >= 0 && slot < state.state.rows, "kda: the slot exists");
    require(pending >= 0 && int64_t{pending} * params.heads <= state.pending_beta.cols,
            "kda: pending rows fit their buffer");
    KdaArgs args{};
    args.weights = weights;
    args.state = state;
    args.params = params;
    args.flush = true;
    args.flush_slot = slot;
    args.flush_pending = pending;
    args.flush_fresh = fresh;
    launch(args, 1, stream);
}

}  // namespace quadrille::cuda
