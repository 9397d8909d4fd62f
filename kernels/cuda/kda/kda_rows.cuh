// SPDX-License-Identifier: Apache-2.0
// The rows of a sequence for kda.cu, everything but the recurrence: where they are, convolution,
// norms, gates, the norm of the output, and what a pass keeps of its rows for the next one.
#pragma once

#include "kernels/cuda/kda/kda_math.cuh"
#include "kernels/cuda/kernel_set.h"
#include "kernels/op_types.h"

namespace quadrille::cuda {

constexpr int kChunk = 8;  // rows prepared together

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

// The sequence of a thread block, as in Rows.
struct KdaSequence {
    int32_t slot;
    int32_t pending;
    int32_t first;
    int32_t count;
    bool fresh;
};

// Rows as the recurrence reads them.
template <int kDim>
struct alignas(16) KdaShared {
    float q[kChunk][kDim];
    float k[kChunk][kDim];
    float v[kChunk][kDim];
    float decay[kChunk][kDim];
    float beta[kChunk];
    float q_dot_k[kChunk];
    // This head's inputs of the rows: raw ones of each part from kMaxTaps - 1 rows before the chunk
    // on (null: zero), decay (of a pending row) or f, g (null: pending).
    const float* raw[kMaxTaps - 1 + kChunk];
    const float* decay_or_f[kChunk];
    const float* g[kChunk];
};

template <int kDim>
struct alignas(16) KdaResults {
    float gate[kChunk][kDim];
    float out[kChunk][kDim];
};

// kThreads: of the thread block, all of which call each function.
template <int kDim, int kThreads>
class KdaRows {
  public:
    // results: null where only locate(), raw(), finish_all() and keep_inputs() are called.
    __device__ KdaRows(const KdaArgs& args, KdaSequence& at, KdaResults<kDim>* results)
        : args_(args), at_(at), results_(results) {}

    static __device__ int32_t head() { return static_cast<int32_t>(blockIdx.x); }
    __device__ int32_t taps() const { return args_.params.taps; }
    __device__ int32_t c() const { return args_.params.heads * kDim; }
    // True: own rows become the pending ones.
    __device__ bool deferred() const { return !args_.rows.commit && !args_.flush; }
    // False where there is nothing to run; rows of padding become zero.
    __device__ bool locate() {
        if (args_.flush) {
            if (threadIdx.x == 0) {
                at_ = {args_.flush_slot, args_.flush_pending, 0, 0, args_.flush_fresh};
            }
            __syncthreads();
            return true;
        }
        const auto sequence = static_cast<int32_t>(blockIdx.y);
        const int32_t first = args_.rows.begin[sequence];
        const int32_t count = args_.rows.begin[sequence + 1] - first;
        const int32_t slot = args_.rows.slot[sequence];
        const int32_t pending = args_.rows.pending[sequence];
        const int32_t position = args_.rows.position[sequence];
        if (slot < 0) {
            for (int64_t i = threadIdx.x; i < int64_t{count} * kDim; i += blockDim.x) {
                args_.out.data[(first + i / kDim) * args_.out.stride + head() * kDim + i % kDim] =
                    0.0f;
            }
            return false;
        }
        if (threadIdx.x == 0) at_ = {slot, pending, first, count, position == pending};
        __syncthreads();
        return count > 0;
    }

    // Everything the recurrence needs of `count` timeline rows from `start`.
    __device__ void fill(KdaShared<kDim>& to, int32_t start, int count) {
        s_ = &to;
        locate_rows(start);
        __syncthreads();
        prepare(start, count);
        __syncthreads();
        normalise_rows(count);
        if (deferred()) keep_beta(start, count);
    }

    // This head's part of own row `own`.
    __device__ float* out(int32_t own) const {
        return args_.out.data + int64_t{at_.first + own} * args_.out.stride + head() * kDim;
    }

    // out = rms(out) * o_norm * sigmoid(g), a warp per own row.
    __device__ void finish(int32_t start, int rows) {
#pragma unroll 1
        for (int i = thread() / 32; i < rows; i += kThreads / 32) {
            const int32_t own = start + i - at_.pending;
            if (own < 0) continue;
            float squares = 0.0f;
            for (int j = thread() % 32; j < kDim; j += 32) {
                squares = fmaf(results_->out[i][j], results_->out[i][j], squares);
            }
            const float inverse = inverse_rms(squares);
            float* to = out(own);
            for (int j = thread() % 32; j < kDim; j += 32) {
                to[j] = results_->out[i][j] * inverse * results_->gate[i][j];
            }
        }
    }
    // The same where out holds the results of all own rows; shared by the blocks of the z axis.
    __device__ void finish_all() {
        constexpr int kOfLane = kDim / 32;
        const int warps = kThreads / 32;
        const int lane = thread() % 32;
        const int first = static_cast<int>(blockIdx.z) * warps + thread() / 32;
        float norm[kOfLane];
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) norm[j] = args_.weights.o_norm[lane + 32 * j];
#pragma unroll 1
        for (int32_t own = first; own < at_.count; own += static_cast<int>(gridDim.z) * warps) {
            const float* g =
                args_.g.data + int64_t{at_.first + own} * args_.g.stride + head() * kDim;
            float* to = out(own);
            float x[kOfLane];
            float gate[kOfLane];
#pragma unroll
            for (int j = 0; j < kOfLane; ++j) {
                x[j] = to[lane + 32 * j];
                gate[j] = g[lane + 32 * j];
            }
            float squares = 0.0f;
#pragma unroll
            for (int j = 0; j < kOfLane; ++j) squares = fmaf(x[j], x[j], squares);
            const float inverse = inverse_rms(squares);
            sigmoids(gate);
#pragma unroll
            for (int j = 0; j < kOfLane; ++j) {
                to[lane + 32 * j] = x[j] * inverse * (norm[j] * gate[j]);
            }
        }
    }

    // The history becomes the taps - 1 raw rows before timeline row `stored`; rows from there on
    // become the pending ones.
    __device__ void keep_inputs(int32_t stored, int32_t total) {
#pragma unroll 1
        for (int i = thread(); i < 3 * kDim; i += kThreads) {
            const int32_t channel = i / kDim * c() + i % kDim;
            float* to = args_.state.conv.data + int64_t{at_.slot} * args_.state.conv.stride +
                        head() * kDim + channel;
            float history[kMaxTaps - 1];
#pragma unroll
            for (int j = 0; j < kMaxTaps - 1; ++j) {
                const int32_t t = stored - taps() + 1 + j;
                if (j < taps() - 1) history[j] = is_zero(t) ? 0.0f : raw(t)[channel];
            }
#pragma unroll
            for (int j = 0; j < kMaxTaps - 1; ++j) {
                if (j < taps() - 1) to[int64_t{j} * 3 * c()] = history[j];
            }
            to = args_.state.pending_qkv.data + int64_t{at_.slot} * args_.state.pending_qkv.stride +
                 head() * kDim + channel;
#pragma unroll 1
            for (int32_t t = stored; t < total; t += 4) {
                float own[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if (t + j < total) own[j] = raw(t + j)[channel];
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if (t + j < total) to[int64_t{t + j - at_.pending} * 3 * c()] = own[j];
                }
            }
        }
    }

    // Channels of this head of timeline row t; those of k and v follow after c() and 2 c().
    __device__ const float* raw(int32_t t) const {
        const float* own = args_.qkv.data + int64_t{at_.first + t - at_.pending} * args_.qkv.stride;
        const float* pending = args_.state.pending_qkv.data +
                               int64_t{at_.slot} * args_.state.pending_qkv.stride +
                               int64_t{t} * 3 * c();
        const float* history = args_.state.conv.data + int64_t{at_.slot} * args_.state.conv.stride +
                               int64_t{taps() - 1 + t} * 3 * c();
        return (t >= at_.pending ? own : t >= 0 ? pending : history) + head() * kDim;
    }
    // True: it counts as zero, whatever is stored.
    __device__ bool is_zero(int32_t t) const {
        return t < 0 && (at_.fresh || t < 1 - taps());
    }

  private:
    static __device__ int thread() {
        return static_cast<int>(threadIdx.x);
    }
    // Finds the rows of a chunk. Behind its end there are as many rows of nothing as it lacks.
    __device__ void locate_rows(int32_t start) {
        const int i = thread();
        if (i < kMaxTaps - 1 + kChunk) {
            const int32_t t = start + i - (kMaxTaps - 1);
            s_->raw[i] = is_zero(t) || t >= at_.pending + at_.count ? nullptr : raw(t);
        } else if (i >= 16 && i < 16 + kChunk) {
            const int32_t t = start + i - 16;
            const int32_t row = at_.first + t - at_.pending;
            s_->decay_or_f[i - 16] =
                head() * kDim +
                (t < at_.pending
                     ? args_.state.pending_decay.data +
                           int64_t{at_.slot} * args_.state.pending_decay.stride + int64_t{t} * c()
                     : args_.f.data + int64_t{row} * args_.f.stride);
        } else if (i >= 24 && i < 24 + kChunk) {
            const int32_t t = start + i - 24;
            const int32_t row = at_.first + t - at_.pending;
            s_->g[i - 24] = t < at_.pending
                                ? nullptr
                                : args_.g.data + int64_t{row} * args_.g.stride + head() * kDim;
        }
    }

    // Convolution, gates and beta of `rows` timeline rows from `start`: a thread has a channel of
    // q, k, v or of the gates, so that no input is loaded twice.
    __device__ void prepare(int32_t start, int rows) {
        const int32_t t = start + thread();
        float beta = 0.0f;
        if (thread() < rows) {
            beta =
                t < at_.pending
                    ? args_.state.pending_beta
                          .data[int64_t{at_.slot} * args_.state.pending_beta.stride +
                                t * args_.params.heads + head()]
                    : args_.b.data[int64_t{at_.first + t - at_.pending} * args_.b.stride + head()];
        }
#pragma unroll 1
        for (int i = thread(); i < 4 * kDim; i += kThreads) {
            if (i < kDim) {
                gates(i, start, rows);
                continue;
            }
            const int part = i / kDim - 1;
            const int of_head = i % kDim;
            if (taps() <= 4) {
                convolve<4, kChunk>(part, of_head, 0, rows);
                continue;
            }
            for (int row = 0; row < rows; row += 4) {
                convolve<kMaxTaps, 4>(part, of_head, row, rows - row);
            }
        }
        if (thread() < rows) s_->beta[thread()] = t < at_.pending ? beta : sigmoid(beta);
    }

    // Up to kRows rows from row `to` of the chunk. Missing taps come first, as zeros.
    template <int kTaps, int kRows>
    __device__ void convolve(int part, int of_head, int to, int rows) {
        const int32_t channel = part * c() + of_head;
        float weight[kTaps];
        float in[kTaps - 1 + kRows];
#pragma unroll
        for (int j = 0; j < kTaps - 1 + kRows; ++j) {
            const float* at = s_->raw[kMaxTaps - kTaps + to + j];
            in[j] = at == nullptr ? 0.0f : at[channel];
        }
        load_taps(weight, args_.weights.conv + int64_t{channel + head() * kDim} * taps(), taps());
        float(*result)[kDim] = part == 0 ? s_->q : part == 1 ? s_->k : s_->v;
#pragma unroll
        for (int row = 0; row < kRows; row += kTogether) {
            if (row >= rows) break;
            float sum[kTogether];
            short_convolution(sum, weight, in + row);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) result[to + row + i][of_head] = sum[i];
        }
    }

    // Own rows of a decode wait for the next step: decay as it is used now. Row `own` of the
    // buffer was read by this thread, in this chunk or an earlier one.
    __device__ void keep_decay(int32_t own, int32_t channel, float decay) {
        args_.state.pending_decay.data[int64_t{at_.slot} * args_.state.pending_decay.stride +
                                       int64_t{own} * c() + channel] = decay;
    }

    // Decay, and for own rows the gate of the output times the weight of its norm.
    __device__ void gates(int of_head, int32_t start, int rows) {
        const int32_t channel = head() * kDim + of_head;
        float decay[kChunk];
        float g_of_row[kChunk];
#pragma unroll
        for (int row = 0; row < kChunk; ++row) {
            decay[row] = row < rows ? s_->decay_or_f[row][of_head] : 0.0f;
            const float* g = row < rows ? s_->g[row] : nullptr;
            g_of_row[row] = g == nullptr ? 0.0f : g[of_head];
        }
        const float rate = expf(args_.weights.a_log[head()]);
        const float bias = args_.weights.dt_bias[channel];
        const float norm = args_.weights.o_norm[of_head];
#pragma unroll
        for (int row = 0; row < kChunk; row += kTogether) {
            if (row >= rows) break;
            float of_own[kTogether];
            float gate[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                of_own[i] = decay[row + i];
                gate[i] = g_of_row[row + i];
            }
            decays(of_own, rate, bias, args_.params.lower_bound);
            sigmoids(gate);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int32_t own = start + row + i - at_.pending;
                s_->decay[row + i][of_head] = own < 0 ? decay[row + i] : of_own[i];
                results_->gate[row + i][of_head] = norm * gate[i];
                if (deferred() && own >= 0 && row + i < rows) keep_decay(own, channel, of_own[i]);
            }
        }
    }

    // A warp per row.
    __device__ void normalise_rows(int rows) {
#pragma unroll 1
        for (int i = thread() / 32; i < rows; i += kThreads / 32) {
            float q[(kDim + 31) / 32];
            float k[(kDim + 31) / 32];
            const float product = normalise<kDim>(q, k, s_->q[i], s_->k[i]);
#pragma unroll
            for (int j = 0; j < (kDim + 31) / 32; ++j) {
                const int at = thread() % 32 + 32 * j;
                if (at >= kDim) continue;
                s_->q[i][at] = q[j];
                s_->k[i][at] = k[j];
            }
            if (thread() % 32 == 0) s_->q_dot_k[i] = product;
        }
    }

    // As keep_decay; the row was read before the last barrier.
    __device__ void keep_beta(int32_t start, int rows) {
        const int32_t own = start + thread() - at_.pending;
        if (thread() >= rows || own < 0) return;
        args_.state.pending_beta.data[int64_t{at_.slot} * args_.state.pending_beta.stride +
                                      int64_t{own} * args_.params.heads + head()] =
            s_->beta[thread()];
    }

    // 1 / rms of a row of the head, by a warp; squares: the sum of those of a lane.
    __device__ float inverse_rms(float squares) const {
        const float mean = warp_sum(squares) / static_cast<float>(kDim);
        return 1.0f / sqrtf(mean + args_.params.norm_eps);
    }
    const KdaArgs& args_;
    KdaSequence& at_;
    KdaResults<kDim>* results_;
    KdaShared<kDim>* s_ = nullptr;
};

}  // namespace quadrille::cuda
