// SPDX-License-Identifier: Apache-2.0
// KDA over many rows: the threads that prepare rows ahead of the recurrence, in stages, each with a
// part of the rows: raw inputs on their way to registers, convolution of q and k, norms and all
// the rest. A turn has one barrier: behind it, the part that the recurrence has left may be
// overwritten, and the next one is there.
#pragma once

#include "kernels/cuda/kda/kda_columns.cuh"

namespace quadrille::cuda {

constexpr int kSplitTaps = 4;  // of the convolution, at most
constexpr int kPart = 16;      // rows of a stage
constexpr int kFinishThreads = 256;

// kSplits thread blocks share the columns of a head, as many for each of their threads as leave the
// threads their number.
template <int kChannels, int kSplits>
struct Split {
    static constexpr int kDim = kChannels;
    static constexpr int kWidth = kDim / kSplits;
    using State = KdaColumns<kDim, 8 / kSplits>;
    // Registers for the keys of the next row.
    static constexpr bool kReadsAhead = kSplits == 4;
    // Threads of each kind: 16 warps for 128 registers each.
    static constexpr int kSteps = State::kThreads / kSplits;
    static constexpr int kKeys = 2 * kDim;
    static constexpr int kOthers = kDim;
    static constexpr int kThreads = kSteps + kKeys + kOthers;

    // A barrier of the whole thread block: not __syncthreads(), it is met from several places.
    static __device__ void sync() {
        asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(kThreads) : "memory");
    }
};

template <class S>
struct alignas(16) KdaPart {
    static constexpr int kDim = S::kDim;
    float q[kPart][kDim];
    float k[kPart][kDim];
    float decay[kPart][kDim];
    float v[kPart][S::kWidth];
    float beta[kPart];
    float q_dot_k[kPart];
};
// One that is read, the next one, and one that is written.
template <class S>
struct KdaParts {
    KdaPart<S> of_turn[3];

    // q or k (part 1) of a turn, before the norms and after them.
    __device__ float (*keys(int32_t turn, int part))[S::kDim] {
        return part == 0 ? of_turn[turn % 3].q : of_turn[turn % 3].k;
    }
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
    // Reads f, for pending rows the decay.
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

// A thread that prepares a channel of q or k, and warps that norm rows of them.
template <class S>
class KdaKeysAhead {
  public:
    static constexpr int kDim = S::kDim;
    using Parts = KdaParts<S>;

    __device__ KdaKeysAhead(const KdaArgs& args, const KdaSequence& at, Parts& parts)
        : parts_(parts),
          part_(thread() / kDim),
          column_(thread() % kDim),
          input_(args, at, part_, column_) {
        const int64_t c = int64_t{args.params.heads} * kDim;
        const int taps = args.params.taps;
        load_taps(weight_,
                  args.weights.conv + (part_ * c + KdaInput::channel_of(args, column_)) * taps,
                  taps);
    }
    // warp: this one, of the thread block; the same in all lanes as the compiler sees it.
    __device__ void run(int32_t turns, int warp) {
        load(0);
#pragma unroll 1
        for (int32_t turn = -2; turn < turns; ++turn) {
            if (turn + 2 < turns) convolve(parts_.keys(turn + 2, part_));
            if (turn >= -1 && turn + 1 < turns) norm(turn + 1, warp - S::kSteps / 32);
            if (turn + 3 < turns) load(turn + 3);
            S::sync();
        }
    }

  private:
    static __device__ int thread() {
        return static_cast<int>(threadIdx.x) - S::kSteps;
    }
    // Under way until convolve() uses them.
    __device__ void load(int32_t turn) {
        input_.load<kSplitTaps - 1 + kPart>(in_, turn * kPart - (kSplitTaps - 1));
    }
    __device__ void convolve(float (*to)[kDim]) const {
#pragma unroll
        for (int row = 0; row < kPart; row += kTogether) {
            float sum[kTogether];
            short_convolution(sum, weight_, in_ + row);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) to[row + i][column_] = sum[i];
        }
    }
    __device__ void norm(int32_t turn, int warp) const {
        const float(*raw_q)[kDim] = parts_.keys(turn, 0);
        const float(*raw_k)[kDim] = parts_.keys(turn, 1);
        KdaPart<S>& to = parts_.of_turn[turn % 3];
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int i = warp; i < kPart; i += S::kKeys / 32) {
            float q[kDim / 32];
            float k[kDim / 32];
            const float product = normalise<kDim>(q, k, raw_q[i], raw_k[i]);
#pragma unroll
            for (int j = 0; j < kDim / 32; ++j) {
                to.q[i][lane + 32 * j] = q[j];
                to.k[i][lane + 32 * j] = k[j];
            }
            if (lane == 0) to.q_dot_k[i] = product;
        }
    }

    Parts& parts_;
    const int part_;
    const int column_;
    const KdaInput input_;
    float weight_[kSplitTaps];
    float in_[kSplitTaps - 1 + kPart];
};

// A thread that prepares a channel of the decay and, for its thread block only and of a few rows
// of each part, a channel of the block's columns of v, or beta.
template <class S>
class KdaOthersAhead {
  public:
    static constexpr int kDim = S::kDim;
    using Parts = KdaParts<S>;

    __device__ KdaOthersAhead(const KdaArgs& args, const KdaSequence& at, Parts& parts)
        : args_(args),
          at_(at),
          parts_(parts),
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
    __device__ void run(int32_t turns) {
        load(0);
#pragma unroll 1
        for (int32_t turn = -2; turn < turns; ++turn) {
            const bool prepares = turn >= -1 && turn + 1 < turns;
            if (prepares) prepare(parts_.of_turn[(turn + 1) % 3], (turn + 1) * kPart);
            if (prepares && turn + 2 < turns) load((turn + 2) * kPart);
            S::sync();
        }
    }

  private:
    static constexpr int kRowsOfV = kPart * S::kWidth / S::kOthers;

    // Under way until prepare() uses them.
    __device__ void load(int32_t start) {
        decay_input_.load<kPart>(decay_, start);
        v_input_.load<kSplitTaps - 1 + kRowsOfV>(v_, start + v_row() - (kSplitTaps - 1));
        const int head = static_cast<int>(blockIdx.x);
        const int32_t t = start + thread();
        if (thread() >= kPart || t >= at_.pending + at_.count) return;
        beta_ = t < at_.pending
                    ? args_.state.pending_beta
                          .data[int64_t{at_.slot} * args_.state.pending_beta.stride +
                                t * args_.params.heads + head]
                    : args_.b.data[int64_t{at_.first + t - at_.pending} * args_.b.stride + head];
    }
    __device__ void prepare(KdaPart<S>& to, int32_t start) const {
#pragma unroll
        for (int row = 0; row < kPart; row += kTogether) {
            float own[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) own[i] = decay_[row + i];
            decays(own, rate_, bias_, args_.params.lower_bound);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int at = row + i;
                to.decay[at][thread()] = start + at < at_.pending ? decay_[at] : own[i];
            }
        }
        float v[kRowsOfV];
        short_convolution(v, weight_, v_);
#pragma unroll
        for (int i = 0; i < kRowsOfV; ++i) to.v[v_row() + i][thread() % S::kWidth] = v[i];
        if (thread() < kPart) {
            to.beta[thread()] = start + thread() < at_.pending ? beta_ : sigmoid(beta_);
        }
    }

    static __device__ int thread() {
        return static_cast<int>(threadIdx.x) - S::kSteps - S::kKeys;
    }
    static __device__ int v_column() {
        return static_cast<int>(blockIdx.z) * S::kWidth + thread() % S::kWidth;
    }
    static __device__ int v_row() {
        return thread() / S::kWidth * kRowsOfV;
    }

    const KdaArgs& args_;
    const KdaSequence& at_;
    Parts& parts_;
    const KdaInput decay_input_;
    const KdaInput v_input_;
    float rate_;
    float bias_;
    float beta_ = 0.0f;
    float weight_[kSplitTaps];
    float decay_[kPart];
    float v_[kSplitTaps - 1 + kRowsOfV];
};

}  // namespace quadrille::cuda
