// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention with deferred commit (docs/design.md §6). A sequence is one timeline of raw
// rows: convolution history, pending rows, own rows; one loop runs all of them, so a row that is
// decoded, replayed, flushed or prefilled goes through the same instructions. A thread block owns a
// head of a sequence and keeps its state in registers: read once, written once.
// The stored state counts as zero while position == pending: slots are reused uncleared.
//
// Bound of a decode: the state read and written, 128 KB per head of 128. Bound of a prefill: the
// latency of a row's two sums over the keys.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sequence_launch.h"
#include "kernels/cuda/swiglu.cuh"

namespace quadrille::cuda {

namespace {

constexpr float kNormEps = 1e-6f;  // of the l2 norms of q and k, added to the sum
constexpr int kMaxTaps = 8;
constexpr int kChunk = 8;      // rows prepared together
constexpr int kKeyGroups = 4;  // threads that share a column of the state

struct KdaArgs {
    View<float> out;
    View<const float> qkv;
    View<const float> f;
    View<const float> b;
    View<const float> g;
    KdaWeights weights;
    KdaState state;
    KdaParams params;
    Rows rows;
    // kda_flush: one sequence without rows of its own.
    bool flush;
    int32_t flush_slot;
    int32_t flush_pending;
    bool flush_fresh;
};

template <int kDim>
struct Shared {
    float q[kChunk][kDim];
    float k[kChunk][kDim];
    float v[kChunk][kDim];
    float decay[kChunk][kDim];
    float out[kChunk][kDim];
    float beta[kChunk];
    float reads[2][kKeyGroups][kDim];   // S^T k, by key group
    float writes[2][kKeyGroups][kDim];  // S^T q
};

template <int kDim>
class KdaKernel {
  public:
    static constexpr int kThreads = kDim * kKeyGroups;
    static constexpr int kKeys = kDim / kKeyGroups;  // of a thread

    __device__ KdaKernel(const KdaArgs& args, Shared<kDim>& shared) : args_(args), s_(shared) {}

    __device__ void run() {
        if (!locate()) return;
        const int64_t total = pending_ + count_;
        const int64_t stored = args_.rows.commit || args_.flush ? total : pending_;
        load_state();
        for (int64_t start = 0; start < total; start += kChunk) {
            const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), total - start));
            __syncthreads();
            prepare(start, rows);
            __syncthreads();
            normalise(rows);
            if (stored < total) keep_gates(start, rows);
            __syncthreads();
            for (int i = 0; i < rows; ++i) {
                if (start + i == stored) store_state();
                step(i);
            }
            __syncthreads();
            finish(start, rows);
        }
        if (stored == total) store_state();
        __syncthreads();
        keep_inputs(stored, total);
    }

  private:
    static __device__ int thread() { return static_cast<int>(threadIdx.x); }
    __device__ int column() const { return thread() % kDim; }
    __device__ int key_group() const { return thread() / kDim; }

    // False where there is nothing to run; rows of padding become zero.
    __device__ bool locate() {
        head_ = static_cast<int32_t>(blockIdx.x);
        taps_ = args_.params.taps;
        c_ = int64_t{args_.params.heads} * kDim;
        if (args_.flush) {
            slot_ = args_.flush_slot;
            pending_ = args_.flush_pending;
            fresh_ = args_.flush_fresh;
            count_ = 0;
            first_ = 0;
            return true;
        }
        const auto sequence = static_cast<int32_t>(blockIdx.y);
        first_ = args_.rows.begin[sequence];
        count_ = args_.rows.begin[sequence + 1] - first_;
        slot_ = args_.rows.slot[sequence];
        if (slot_ < 0) {
            for (int64_t i = thread(); i < count_ * kDim; i += kThreads) {
                args_.out.data[(first_ + i / kDim) * args_.out.stride + head_ * kDim + i % kDim] =
                    0.0f;
            }
            return false;
        }
        pending_ = args_.rows.pending[sequence];
        fresh_ = args_.rows.position[sequence] == pending_;
        return count_ > 0;
    }

    __device__ float* state() const {
        return args_.state.state.data + slot_ * args_.state.state.stride +
               int64_t{head_} * kDim * kDim + int64_t{key_group()} * kKeys * kDim + column();
    }
    __device__ void load_state() {
        const float* from = state();
#pragma unroll
        for (int i = 0; i < kKeys; ++i) s_of_key_[i] = fresh_ ? 0.0f : from[i * kDim];
    }
    __device__ void store_state() const {
        float* to = state();
#pragma unroll
        for (int i = 0; i < kKeys; ++i) to[i * kDim] = s_of_key_[i];
    }

    // Raw channel `channel` (of 3c) of timeline row t, without a branch: many are loaded together.
    // What is_zero(t) counts as zero, whatever is stored.
    __device__ float raw(int64_t t, int64_t channel) const {
        const float* own = args_.qkv.data + (first_ + t - pending_) * args_.qkv.stride;
        const float* pending =
            args_.state.pending_qkv.data + slot_ * args_.state.pending_qkv.stride + t * 3 * c_;
        const float* history =
            args_.state.conv.data + slot_ * args_.state.conv.stride + (taps_ - 1 + t) * 3 * c_;
        return (t >= pending_ ? own : t >= 0 ? pending : history)[channel];
    }
    __device__ bool is_zero(int64_t t) const {
        return fresh_ && t < 0;
    }

    __device__ float decay_of(int64_t t, int64_t channel) const {
        if (t < pending_) {
            return args_.state.pending_decay
                .data[slot_ * args_.state.pending_decay.stride + t * c_ + channel];
        }
        const float f = args_.f.data[(first_ + t - pending_) * args_.f.stride + channel];
        const float rate = expf(args_.weights.a_log[head_]);
        return expf(args_.params.lower_bound *
                    sigmoid(rate * (f + args_.weights.dt_bias[channel])));
    }

    // Convolution and gates of `rows` timeline rows from `start`.
    __device__ void prepare(int64_t start, int rows) {
        for (int i = thread(); i < rows * 3 * kDim; i += kThreads) {
            const int row = i / (3 * kDim);
            const int part = i / kDim % 3;
            const int64_t channel = part * c_ + int64_t{head_} * kDim + i % kDim;
            const int64_t first = start + row - taps_ + 1;
            float weight[kMaxTaps];
            float in[kMaxTaps];
#pragma unroll
            for (int j = 0; j < kMaxTaps; ++j) {
                if (j >= taps_) break;
                weight[j] = args_.weights.conv[channel * taps_ + j];
                in[j] = raw(first + j, channel);
            }
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < kMaxTaps; ++j) {
                if (j < taps_) sum += weight[j] * (is_zero(first + j) ? 0.0f : in[j]);
            }
            float* to = part == 0 ? s_.q[row] : part == 1 ? s_.k[row] : s_.v[row];
            to[i % kDim] = sum * sigmoid(sum);
        }
        for (int i = thread(); i < rows * kDim; i += kThreads) {
            const int row = i / kDim;
            s_.decay[row][i % kDim] = decay_of(start + row, int64_t{head_} * kDim + i % kDim);
        }
        if (thread() < rows) {
            const int64_t t = start + thread();
            s_.beta[thread()] =
                t < pending_
                    ? args_.state.pending_beta.data[slot_ * args_.state.pending_beta.stride +
                                                    t * args_.params.heads + head_]
                    : sigmoid(args_.b.data[(first_ + t - pending_) * args_.b.stride + head_]);
        }
    }

    // l2 norms of q and k, a warp per vector.
    __device__ void normalise(int rows) {
        const float scale = 1.0f / sqrtf(static_cast<float>(kDim));
        for (int i = thread() / 32; i < 2 * rows; i += kThreads / 32) {
            float* x = i % 2 == 0 ? s_.q[i / 2] : s_.k[i / 2];
            float squares = 0.0f;
            for (int j = thread() % 32; j < kDim; j += 32) squares += x[j] * x[j];
            const float factor = (i % 2 == 0 ? scale : 1.0f) / sqrtf(warp_sum(squares) + kNormEps);
            for (int j = thread() % 32; j < kDim; j += 32) x[j] *= factor;
        }
    }

    // Own rows of a decode wait for the next step: decay and beta as they are used now. Row i of
    // the buffer was read in this chunk or an earlier one.
    __device__ void keep_gates(int64_t start, int rows) {
        for (int i = thread(); i < rows * kDim; i += kThreads) {
            const int64_t own = start + i / kDim - pending_;
            if (own < 0) continue;
            args_.state.pending_decay.data[slot_ * args_.state.pending_decay.stride + own * c_ +
                                           int64_t{head_} * kDim + i % kDim] =
                s_.decay[i / kDim][i % kDim];
        }
        if (thread() < rows && start + thread() >= pending_) {
            args_.state.pending_beta
                .data[slot_ * args_.state.pending_beta.stride +
                      (start + thread() - pending_) * args_.params.heads + head_] =
                s_.beta[thread()];
        }
    }

    // S = diag(decay) S; S += k (beta (v - S^T k))^T; out = S^T q.
    __device__ void step(int i) {
        const int first = key_group() * kKeys;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
            s_of_key_[j] *= s_.decay[i][first + j];
            part += s_.k[i][first + j] * s_of_key_[j];
        }
        s_.reads[i % 2][key_group()][column()] = part;
        __syncthreads();
        float read = 0.0f;
#pragma unroll
        for (int g = 0; g < kKeyGroups; ++g) read += s_.reads[i % 2][g][column()];
        const float delta = s_.beta[i] * (s_.v[i][column()] - read);
        part = 0.0f;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
            s_of_key_[j] += s_.k[i][first + j] * delta;
            part += s_.q[i][first + j] * s_of_key_[j];
        }
        s_.writes[i % 2][key_group()][column()] = part;
        // The sums of the row before are complete since the barrier above.
        if (i > 0) gather(i - 1);
    }

    __device__ void gather(int i) {
        if (key_group() != 0) return;
        float sum = 0.0f;
#pragma unroll
        for (int g = 0; g < kKeyGroups; ++g) sum += s_.writes[i % 2][g][column()];
        s_.out[i][column()] = sum;
    }

    // out = rms(out) * o_norm * sigmoid(g), a warp per own row.
    __device__ void finish(int64_t start, int rows) {
        gather(rows - 1);
        __syncthreads();
        for (int i = thread() / 32; i < rows; i += kThreads / 32) {
            const int64_t own = start + i - pending_;
            if (own < 0) continue;
            float squares = 0.0f;
            for (int j = thread() % 32; j < kDim; j += 32) squares += s_.out[i][j] * s_.out[i][j];
            const float mean = warp_sum(squares) / static_cast<float>(kDim);
            const float inverse = 1.0f / sqrtf(mean + args_.params.norm_eps);
            const int64_t channel = int64_t{head_} * kDim;
            const float* g = args_.g.data + (first_ + own) * args_.g.stride + channel;
            float* out = args_.out.data + (first_ + own) * args_.out.stride + channel;
            for (int j = thread() % 32; j < kDim; j += 32) {
                out[j] = s_.out[i][j] * inverse * args_.weights.o_norm[j] * sigmoid(g[j]);
            }
        }
    }

    // The history becomes the taps - 1 raw rows before timeline row `stored`; rows from there on
    // become the pending ones.
    __device__ void keep_inputs(int64_t stored, int64_t total) {
        for (int i = thread(); i < 3 * kDim; i += kThreads) {
            const int64_t channel = i / kDim * c_ + int64_t{head_} * kDim + i % kDim;
            float history[kMaxTaps - 1];
#pragma unroll
            for (int j = 0; j < kMaxTaps - 1; ++j) {
                if (j < taps_ - 1) history[j] = raw(stored - taps_ + 1 + j, channel);
            }
#pragma unroll
            for (int j = 0; j < kMaxTaps - 1; ++j) {
                if (j < taps_ - 1) {
                    args_.state.conv.data[slot_ * args_.state.conv.stride + j * 3 * c_ + channel] =
                        is_zero(stored - taps_ + 1 + j) ? 0.0f : history[j];
                }
            }
            for (int64_t t = stored; t < total; ++t) {
                args_.state.pending_qkv.data[slot_ * args_.state.pending_qkv.stride +
                                             (t - pending_) * 3 * c_ + channel] = raw(t, channel);
            }
        }
    }

    const KdaArgs& args_;
    Shared<kDim>& s_;
    int32_t head_ = 0;
    int32_t taps_ = 0;
    int64_t slot_ = 0;
    int64_t pending_ = 0;
    int64_t first_ = 0;
    int64_t count_ = 0;
    int64_t c_ = 0;
    bool fresh_ = false;
    float s_of_key_[kKeys];
};

template <int kDim>
__global__ void __launch_bounds__(kDim* kKeyGroups)
    kda_kernel(const __grid_constant__ KdaArgs args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ Shared<kDim> shared;
    KdaKernel<kDim>(args, shared).run();
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

void launch(const KdaArgs& args, int32_t sequences, LaunchStream stream) {
    if (sequences == 0) return;
    const dim3 grid(static_cast<unsigned>(args.params.heads), static_cast<unsigned>(sequences));
    switch (args.params.head_dim) {
        case 16:
            launch_dependent(kda_kernel<16>, grid, 16 * kKeyGroups, 0, stream, args);
            break;
        case 32:
            launch_dependent(kda_kernel<32>, grid, 32 * kKeyGroups, 0, stream, args);
            break;
        case 64:
            launch_dependent(kda_kernel<64>, grid, 64 * kKeyGroups, 0, stream, args);
            break;
        case 128:
            launch_dependent(kda_kernel<128>, grid, 128 * kKeyGroups, 0, stream, args);
            break;
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
