// SPDX-License-Identifier: Apache-2.0
// KDA over many rows of few sequences: a thread block has a part of the columns of a head. Some of
// its threads run the recurrence; the others stay ahead of it by three stages, each with a part of
// the rows of its own: raw inputs on their way to registers, convolution and decay, norms. So one
// barrier a part of the rows is enough. The rows of a head are normed once all columns are there.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/kda_columns.cuh"

namespace quadrille::cuda {

constexpr int kSplits = 4;     // thread blocks that share the columns of a head
constexpr int kSplitTaps = 4;  // of the convolution, at most
constexpr int kPart = 16;      // rows of a stage

template <int kDim>
struct Split {
    static constexpr int kWidth = kDim / kSplits;
    using State = KdaColumns<kDim, 2>;
    // Threads of each kind: 16 warps for 128 registers each.
    static constexpr int kSteps = State::kThreads / kSplits;
    static constexpr int kKeys = 2 * kDim;
    static constexpr int kOthers = kDim;
    static constexpr int kThreads = kSteps + kKeys + kOthers;
    static constexpr int kFinish = 256;

    // Of the whole thread block: not __syncthreads(), it is met from several places.
    static __device__ void sync() {
        asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(kThreads) : "memory");
    }
};

template <int kDim>
struct alignas(16) KdaPart {
    float q[kPart][kDim];
    float k[kPart][kDim];
    float decay[kPart][kDim];
    float v[kPart][Split<kDim>::kWidth];
    float beta[kPart];
    float q_dot_k[kPart];
};
// One that is read, one whose q and k are normed, one that is written.
template <int kDim>
struct KdaParts {
    KdaPart<kDim> of_turn[3];
};

// An input of the rows of a sequence: what history, pending rows and own rows have in a column.
class KdaInput {
  public:
    // column: of the head's channels, in part 0 to 2 (q, k, v) of the raw rows.
    __device__ KdaInput(const KdaArgs& args, const KdaSequence& at, int part, int column)
        : at_(at) {
        const int32_t c = args.params.heads * args.params.head_dim;
        const int32_t channel = part * c + channel_of(args, column);
        own_ = args.qkv.data + int64_t{at.first} * args.qkv.stride + channel;
        own_stride_ = args.qkv.stride;
        waiting_ = args.state.pending_qkv.data + int64_t{at.slot} * args.state.pending_qkv.stride +
                   channel;
        waiting_stride_ = 3 * c;
        history_ = args.state.conv.data + int64_t{at.slot} * args.state.conv.stride + channel;
        before_ = at.fresh ? 0 : args.params.taps - 1;
    }
    // Of f, for pending rows the decay.
    __device__ KdaInput(const KdaArgs& args, const KdaSequence& at, int column) : at_(at) {
        const int32_t channel = channel_of(args, column);
        own_ = args.f.data + int64_t{at.first} * args.f.stride + channel;
        own_stride_ = args.f.stride;
        waiting_ = args.state.pending_decay.data +
                   int64_t{at.slot} * args.state.pending_decay.stride + channel;
        waiting_stride_ = args.params.heads * args.params.head_dim;
    }

    static __device__ int32_t channel_of(const KdaArgs& args, int column) {
        return static_cast<int32_t>(blockIdx.x) * args.params.head_dim + column;
    }
    // Timeline rows from `start` on; zero where there are none.
    template <int kRows>
    __device__ void load(float* to, int32_t start) const {
        const float* own = own_ + int64_t{start - at_.pending} * own_stride_;
        const int32_t total = at_.pending + at_.count;
        if (start >= at_.pending && start + kRows <= total) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) to[i] = own[i * own_stride_];
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int32_t t = start + i;
            to[i] = 0.0f;
            if (t >= at_.pending) {
                if (t < total) to[i] = own[i * own_stride_];
            } else if (t >= 0) {
                to[i] = waiting_[t * waiting_stride_];
            } else if (t >= -before_) {
                to[i] = history_[(t + before_) * waiting_stride_];
            }
        }
    }

  private:
    const KdaSequence& at_;
    const float* own_;
    int64_t own_stride_;
    const float* waiting_;
    const float* history_ = nullptr;
    int64_t waiting_stride_;
    int before_ = 0;  // rows of history
};

// A thread that prepares a channel of q or k. Both kinds: load() fetches the raw inputs of rows,
// which are there when prepare() uses them.
template <int kDim>
class KdaKeysAhead {
  public:
    using S = Split<kDim>;

    __device__ KdaKeysAhead(const KdaArgs& args, const KdaSequence& at)
        : part_(thread() / kDim), column_(thread() % kDim), input_(args, at, part_, column_) {
        const int64_t c = int64_t{args.params.heads} * kDim;
        const int taps = args.params.taps;
        load_taps(weight_,
                  args.weights.conv + (part_ * c + KdaInput::channel_of(args, column_)) * taps,
                  taps);
        input_.load<kSplitTaps - 1>(in_, 1 - kSplitTaps);
    }
    __device__ void load(int32_t start) { input_.load<kPart>(in_ + kSplitTaps - 1, start); }
    __device__ void prepare(KdaPart<kDim>& to) {
        float* result = (part_ == 0 ? to.q[0] : to.k[0]) + column_;
#pragma unroll
        for (int row = 0; row < kPart; row += kTogether) {
            float sum[kTogether];
            short_convolution(sum, weight_, in_ + row);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) result[(row + i) * kDim] = sum[i];
        }
#pragma unroll
        for (int j = 0; j < kSplitTaps - 1; ++j) in_[j] = in_[kPart + j];
    }
    static __device__ void norm(KdaPart<kDim>& to) {
#pragma unroll 1
        for (int i = thread() / 32; i < kPart; i += S::kKeys / 32) {
            const float product = normalise<kDim>(to.q[i], to.k[i]);
            if (thread() % 32 == 0) to.q_dot_k[i] = product;
        }
    }

  private:
    static __device__ int thread() {
        return static_cast<int>(threadIdx.x) - S::kSteps;
    }

    const int part_;
    const int column_;
    const KdaInput input_;
    float weight_[kSplitTaps];
    float in_[kSplitTaps - 1 + kPart];  // from kSplitTaps - 1 rows before the part on
};

// A thread that prepares a channel of the decay and, of a few rows of each part, a channel of the
// thread block's columns of v or beta.
template <int kDim>
class KdaOthersAhead {
  public:
    using S = Split<kDim>;
    static constexpr int kRows = kPart * S::kWidth / S::kOthers;  // of v

    __device__ KdaOthersAhead(const KdaArgs& args, const KdaSequence& at)
        : args_(args),
          at_(at),
          decay_input_(args, at, thread()),
          v_input_(args, at, 2, v_column()) {
        const int64_t c = int64_t{args.params.heads} * kDim;
        const int taps = args.params.taps;
        rate_ = expf(args.weights.a_log[blockIdx.x]);
        bias_ = args.weights.dt_bias[KdaInput::channel_of(args, thread())];
        load_taps(weight_,
                  args.weights.conv + (2 * c + KdaInput::channel_of(args, v_column())) * taps,
                  taps);
    }
    __device__ void load(int32_t start) {
        start_ = start;
        decay_input_.load<kPart>(decay_, start);
        v_input_.load<kSplitTaps - 1 + kRows>(v_, start + v_row() - (kSplitTaps - 1));
        const int head = static_cast<int>(blockIdx.x);
        const int32_t t = start + beta_row();
        if (beta_row() >= kPart || t >= at_.pending + at_.count) return;
        if (t < at_.pending) {
            beta_ =
                args_.state.pending_beta.data[int64_t{at_.slot} * args_.state.pending_beta.stride +
                                              t * args_.params.heads + head];
        } else {
            beta_ = args_.b.data[int64_t{at_.first + t - at_.pending} * args_.b.stride + head];
        }
    }
    __device__ void prepare(KdaPart<kDim>& to) const {
#pragma unroll
        for (int row = 0; row < kPart; row += kTogether) {
            float own[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) own[i] = decay_[row + i];
            decays(own, rate_, bias_, args_.params.lower_bound);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                to.decay[row + i][thread()] =
                    start_ + row + i < at_.pending ? decay_[row + i] : own[i];
            }
        }
        float v[kRows];
        short_convolution(v, weight_, v_);
#pragma unroll
        for (int i = 0; i < kRows; ++i) to.v[v_row() + i][thread() % S::kWidth] = v[i];
        if (beta_row() < kPart) {
            to.beta[beta_row()] = start_ + beta_row() < at_.pending ? beta_ : sigmoid(beta_);
        }
    }

  private:
    static __device__ int thread() {
        return static_cast<int>(threadIdx.x) - S::kSteps - S::kKeys;
    }
    static __device__ int v_column() {
        return static_cast<int>(blockIdx.z) * S::kWidth + thread() % S::kWidth;
    }
    static __device__ int v_row() {
        return thread() / S::kWidth * kRows;
    }
    static __device__ int beta_row() {
        return thread();
    }

    const KdaArgs& args_;
    const KdaSequence& at_;
    const KdaInput decay_input_;
    const KdaInput v_input_;
    int32_t start_ = 0;  // of the rows that were loaded last
    float rate_;
    float bias_;
    float beta_ = 0.0f;
    float weight_[kSplitTaps];
    float decay_[kPart];
    float v_[kSplitTaps - 1 + kRows];
};

// Rows of a part, of which the first `replayed` have no output. to: of the first that has one.
template <int kDim>
__device__ void step_rows(typename Split<kDim>::State& state, const KdaPart<kDim>& from,
                          int replayed, int rows, int column, float* to, int64_t stride) {
    using State = typename Split<kDim>::State;
    int row = 0;
#pragma unroll 1
    for (; row < replayed; ++row) {
        state.template step<false>(State::keys_of(from, row), from, row, column, nullptr);
    }
    if (row == rows) return;
    typename State::Keys next = State::keys_of(from, row);
#pragma unroll 2
    for (; row < rows; ++row) {
        const typename State::Keys keys = next;
        next = State::keys_of(from, min(row + 1, rows - 1));
        state.template step<true>(keys, from, row, column, to);
        to += stride;
    }
}

// The turns of threads that prepare.
template <int kDim, class Ahead>
__device__ void run_ahead(Ahead ahead, KdaParts<kDim>& parts, int32_t turns) {
    ahead.load(0);
#pragma unroll 1
    for (int32_t turn = -2; turn < turns; ++turn) {
        const int32_t next = turn + 2;
        if (next < turns) ahead.prepare(parts.of_turn[next % 3]);
        if (next + 1 < turns) ahead.load((next + 1) * kPart);
        if constexpr (std::is_same_v<Ahead, KdaKeysAhead<kDim>>) {
            if (next > 0 && next <= turns) ahead.norm(parts.of_turn[(next - 1) % 3]);
        }
        Split<kDim>::sync();
    }
}

template <int kDim>
__global__ void __launch_bounds__(Split<kDim>::kThreads, 1)
    kda_split_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    using S = Split<kDim>;
    extern __shared__ unsigned char raw[];
    auto& parts = *reinterpret_cast<KdaParts<kDim>*>(raw);
    __shared__ KdaSequence at;
    KdaRows<kDim, S::kThreads> rows(args, at, nullptr);
    if (!rows.locate()) return;
    const int32_t total = at.pending + at.count;
    const int32_t turns = (total + kPart - 1) / kPart;
    if (threadIdx.x >= S::kSteps + S::kKeys) {
        return run_ahead(KdaOthersAhead<kDim>(args, at), parts, turns);
    }
    if (threadIdx.x >= S::kSteps) return run_ahead(KdaKeysAhead<kDim>(args, at), parts, turns);
    const int first = static_cast<int>(blockIdx.z) * S::kWidth;
    const int column = S::State::column(0);
    float* state_at = state_of<kDim>(args, at) + first + column;
    typename S::State state;
    state.load(state_at, at.fresh);
#pragma unroll 1
    for (int32_t turn = -2; turn < turns; ++turn) {
        if (turn >= 0) {
            const int32_t start = turn * kPart;
            const int32_t count = min(kPart, total - start);
            const int32_t replayed = max(0, min(at.pending - start, count));
            step_rows<kDim>(state, parts.of_turn[turn % 3], replayed, count, column,
                            rows.out(start + replayed - at.pending) + first, args.out.stride);
        }
        S::sync();
    }
    state.store(state_at);
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

}  // namespace quadrille::cuda
