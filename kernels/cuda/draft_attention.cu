// SPDX-License-Identifier: Apache-2.0
// Attention of a DFlash2 draft block over the context ring, in fp32. It takes the visible positions
// in blocks of 256 that begin at multiples of 256, with a running softmax: the cut depends on the
// position of a row only.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sequence_launch.h"

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPositions = 256;  // of a block of keys
constexpr int kMaxRows = 16;     // of a draft block
constexpr int kMaxDim = 256;

// out = rope(rms_norm(in) * weight) at `position`, one head, by a warp; element j is paired with
// j + d / 2.
__device__ void norm_and_rotate(float* out, const float* in, const float* weight, int64_t position,
                                const DraftAttentionParams& params) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t d = params.head_dim;
    const int32_t half = d / 2;
    float squares = 0.0f;
    for (int32_t j = lane; j < d; j += 32) squares += in[j] * in[j];
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(d) + params.norm_eps);
    for (int32_t j = lane; j < half; j += 32) {
        const float divisor =
            powf(params.rope_theta, static_cast<float>(2 * j) / static_cast<float>(d));
        const float angle = static_cast<float>(position) / divisor;
        const float cosine = cosf(angle);
        const float sine = sinf(angle);
        const float low = in[j] * inverse * weight[j];
        const float high = in[half + j] * inverse * weight[half + j];
        out[j] = low * cosine - high * sine;
        out[half + j] = high * cosine + low * sine;
    }
}

__global__ void __launch_bounds__(kThreads)
    append_kernel(DraftCache cache, View<const float> key, View<const float> value,
                  const float* k_norm, const uint8_t* write, DraftAttentionParams params,
                  const __grid_constant__ Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int32_t i = rows.row_sequence[row];
    if (rows.slot[i] < 0 || write[row] == 0) return;
    const int64_t position = int64_t{rows.position[i]} + row - rows.begin[i];
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    // In a pass longer than the ring, the last row that is written to a place stays.
    for (int64_t later = row + cache.ring_size; later < rows.begin[i + 1];
         later += cache.ring_size) {
        if (write[later] != 0) return;
    }
    const int64_t at = position % cache.ring_size * width;
    float* keys = cache.keys.data + rows.slot[i] * cache.keys.stride + at;
    float* values = cache.values.data + rows.slot[i] * cache.values.stride + at;
    for (int32_t g = static_cast<int32_t>(threadIdx.x) / 32; g < params.kv_heads; g += kWarps) {
        norm_and_rotate(keys + int64_t{g} * params.head_dim,
                        key.data + row * key.stride + int64_t{g} * params.head_dim, k_norm,
                        position, params);
    }
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
        values[c] = value.data[row * value.stride + c];
    }
}

struct Attention {
    View<float> out;
    View<const float> query;
    View<const float> key;
    View<const float> value;
    const float* q_norm;
    const float* k_norm;
    DraftCache cache;
    DraftAttentionParams params;
    Rows rows;
    float* queries;  // (rows, heads, d) normed and rotated
    float* keys;     // (rows, kv_heads, d)
};

__global__ void __launch_bounds__(kThreads) rotate_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int32_t i = static_cast<int32_t>(row / args.params.block);
    if (args.rows.slot[i] < 0) return;
    const int64_t position = int64_t{args.rows.position[i]} + row % args.params.block;
    const int64_t d = args.params.head_dim;
    const int32_t heads = args.params.heads;
    for (int32_t h = static_cast<int32_t>(threadIdx.x) / 32; h < heads + args.params.kv_heads;
         h += kWarps) {
        if (h < heads) {
            norm_and_rotate(args.queries + (row * heads + h) * d,
                            args.query.data + row * args.query.stride + h * d, args.q_norm,
                            position, args.params);
        } else {
            const int64_t g = h - heads;
            norm_and_rotate(args.keys + (row * args.params.kv_heads + g) * d,
                            args.key.data + row * args.key.stride + g * d, args.k_norm, position,
                            args.params);
        }
    }
}

// One head of one draft block. Scores: a thread per position, all rows. Sums: a thread per channel
// and share of the positions.
class AttendKernel {
  public:
    struct Shared {
        float query[kMaxRows][kMaxDim];
        float scores[kMaxRows][kPositions];
        float most[kMaxRows];
        float total[kMaxRows];
        float scale[kMaxRows];
        float sums[kThreads][kMaxRows + 1];
    };

    __device__ AttendKernel(const Attention& args, Shared& shared)
        : args_(args),
          s_(shared),
          d_(args.params.head_dim),
          size_(args.params.block),
          sequence_(static_cast<int32_t>(blockIdx.y)),
          head_(static_cast<int32_t>(blockIdx.x)),
          kv_head_(head_ / (args.params.heads / args.params.kv_heads)),
          slot_(args.rows.slot[sequence_]),
          position_(args.rows.position[sequence_]),
          shares_(kThreads / d_ > 0 ? kThreads / d_ : 1) {}

    __device__ void run() {
        const int64_t row = int64_t{sequence_} * size_;
        if (slot_ < 0) {
            for (int32_t i = thread(); i < size_ * d_; i += kThreads) out(row + i / d_)[i % d_] = 0;
            return;
        }
        for (int32_t i = thread(); i < size_ * d_; i += kThreads) {
            s_.query[i / d_][i % d_] =
                args_.queries[((row + i / d_) * args_.params.heads + head_) * d_ + i % d_];
        }
        if (thread() < size_) {
            s_.most[thread()] = -INFINITY;
            s_.total[thread()] = 0.0f;
        }
        float sum[kMaxRows] = {};
        const int64_t window = args_.params.window;
        const int64_t begin = window > 0 ? max(int64_t{0}, position_ - window + 1) : 0;
        const int64_t end = position_ + size_;
        for (int64_t start = begin / kPositions * kPositions; start < end; start += kPositions) {
            __syncthreads();
            score(start, end);
            __syncthreads();
            soften();
            __syncthreads();
            weigh(sum, start, end);
        }
        store(sum, row);
    }

  private:
    static __device__ int thread() { return static_cast<int>(threadIdx.x); }

    __device__ float* out(int64_t row) const {
        return args_.out.data + row * args_.out.stride + int64_t{head_} * d_;
    }
    __device__ const float* key(int64_t at) const {
        const int32_t kv_heads = args_.params.kv_heads;
        if (at >= position_) {
            const int64_t row = int64_t{sequence_} * size_ + at - position_;
            return args_.keys + (row * kv_heads + kv_head_) * d_;
        }
        return args_.cache.keys.data + slot_ * args_.cache.keys.stride +
               (at % args_.cache.ring_size * kv_heads + kv_head_) * d_;
    }
    __device__ const float* value(int64_t at) const {
        if (at >= position_) {
            const int64_t row = int64_t{sequence_} * size_ + at - position_;
            return args_.value.data + row * args_.value.stride + int64_t{kv_head_} * d_;
        }
        return args_.cache.values.data + slot_ * args_.cache.values.stride +
               (at % args_.cache.ring_size * args_.params.kv_heads + kv_head_) * d_;
    }
    // Whether block row j sees a position, which is at most the block's last.
    __device__ bool sees(int32_t j, int64_t at) const {
        const int64_t own = position_ + j;
        if (args_.params.causal && at > own) return false;
        return args_.params.window <= 0 || own - at < args_.params.window;
    }

    __device__ void score(int64_t start, int64_t end) {
        const int64_t at = start + thread();
        const float scale = 1.0f / sqrtf(static_cast<float>(d_));
        // Positions below every row's window may not be in the ring any more.
        const bool visible = at < end && sees(0, at) && at >= 0;
        const bool any = visible || (at < end && at >= position_);
        float dot[kMaxRows] = {};
        if (any) {
            const float* k = key(at);
            for (int32_t c = 0; c < d_; ++c) {
#pragma unroll
                for (int j = 0; j < kMaxRows; ++j) {
                    if (j < size_) dot[j] += s_.query[j][c] * k[c];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kMaxRows; ++j) {
            if (j < size_) s_.scores[j][thread()] = any && sees(j, at) ? dot[j] * scale : -INFINITY;
        }
    }

    // A warp per row: the running softmax takes in a block of positions.
    __device__ void soften() {
        const int lane = thread() % 32;
        for (int32_t j = thread() / 32; j < size_; j += kWarps) {
            float most = -INFINITY;
            for (int p = lane; p < kPositions; p += 32) most = fmaxf(most, s_.scores[j][p]);
#pragma unroll
            for (int stride = 16; stride > 0; stride /= 2) {
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, stride));
            }
            const float before = s_.most[j];
            most = fmaxf(most, before);
            float sum = 0.0f;
            for (int p = lane; p < kPositions; p += 32) {
                const float x = s_.scores[j][p];
                const float weight = x == -INFINITY ? 0.0f : expf(x - most);
                s_.scores[j][p] = weight;
                sum += weight;
            }
            sum = warp_sum(sum);
            __syncwarp();
            if (lane == 0) {
                const float scale = before == -INFINITY ? 0.0f : expf(before - most);
                s_.scale[j] = scale;
                s_.total[j] = s_.total[j] * scale + sum;
                s_.most[j] = most;
            }
        }
    }

    __device__ void weigh(float (&sum)[kMaxRows], int64_t start, int64_t end) {
        const int32_t c = thread() % d_;
        const int32_t share = thread() / d_;
        if (share >= shares_) return;
#pragma unroll
        for (int j = 0; j < kMaxRows; ++j) {
            if (j < size_) sum[j] *= s_.scale[j];
        }
        const auto count = static_cast<int32_t>(min(static_cast<int64_t>(kPositions), end - start));
        for (int32_t p = share; p < count; p += shares_) {
            const int64_t at = start + p;
            if (at < position_ && !sees(0, at)) continue;
            const float x = value(at)[c];
#pragma unroll
            for (int j = 0; j < kMaxRows; ++j) {
                if (j < size_) sum[j] += s_.scores[j][p] * x;
            }
        }
    }

    __device__ void store(const float (&sum)[kMaxRows], int64_t row) {
#pragma unroll
        for (int j = 0; j < kMaxRows; ++j) s_.sums[thread()][j] = sum[j];
        __syncthreads();
        for (int32_t i = thread(); i < size_ * d_; i += kThreads) {
            const int32_t j = i / d_;
            float total = 0.0f;
            for (int32_t share = 0; share < shares_; ++share) {
                total += s_.sums[share * d_ + i % d_][j];
            }
            out(row + j)[i % d_] = total / s_.total[j];
        }
    }

    const Attention& args_;
    Shared& s_;
    int32_t d_;
    int32_t size_;
    int32_t sequence_;
    int32_t head_;
    int32_t kv_head_;
    int64_t slot_;
    int64_t position_;
    int32_t shares_;
};

__global__ void __launch_bounds__(kThreads) attend_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ __align__(16) unsigned char shared[];
    AttendKernel(args, *reinterpret_cast<AttendKernel::Shared*>(shared)).run();
}

void check_cache(const DraftCache& cache, const DraftAttentionParams& params) {
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    require(params.heads > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0 &&
                params.head_dim > 0 && params.head_dim % 2 == 0,
            "draft attention: heads are a multiple of kv_heads, head_dim is even");
    require(cache.ring_size > 0 && cache.keys.cols == cache.ring_size * width &&
                cache.values.cols == cache.keys.cols && cache.values.rows == cache.keys.rows,
            "draft attention: keys and values (slots, ring_size kv_heads d)");
}

}  // namespace

void draft_append(const DraftCache& cache, View<const float> key, View<const float> value,
                  const float* k_norm, const uint8_t* write, const DraftAttentionParams& params,
                  const Rows& rows, LaunchStream stream) {
    check_cache(cache, params);
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    require(key.rows == rows.m && value.rows == rows.m && key.cols == width && value.cols == width,
            "draft_append: key and value (m, kv_heads d)");
    if (rows.m == 0) return;
    launch_dependent(append_kernel, static_cast<unsigned>(rows.m), kThreads, 0, stream, cache, key,
                     value, k_norm, write, params, rows);
}

void draft_attention(View<float> out, View<const float> query, View<const float> key,
                     View<const float> value, const float* q_norm, const float* k_norm,
                     const DraftCache& cache, const DraftAttentionParams& params, const Rows& rows,
                     float* scratch, KernelSet& kernels, LaunchStream stream) {
    check_cache(cache, params);
    const int64_t d = params.head_dim;
    require(params.block > 0 && out.rows == int64_t{rows.sequences} * params.block &&
                query.rows == out.rows && key.rows == out.rows && value.rows == out.rows &&
                out.cols == params.heads * d && query.cols == params.heads * d &&
                key.cols == params.kv_heads * d && value.cols == params.kv_heads * d,
            "draft_attention: out and query (sequences block, heads d), key and value (.., "
            "kv_heads d)");
    require(params.block <= kMaxRows && d <= kMaxDim,
            "draft_attention: blocks of at most 16 rows, heads of at most 256 on a GPU");
    if (out.rows == 0) return;
    const Attention args = {out,
                            query,
                            key,
                            value,
                            q_norm,
                            k_norm,
                            cache,
                            params,
                            rows,
                            scratch,
                            scratch + out.rows * params.heads * d};
    launch_dependent(rotate_kernel, static_cast<unsigned>(out.rows), kThreads, 0, stream, args);
    constexpr auto kShared = static_cast<int>(sizeof(AttendKernel::Shared));
    kernels.allow_shared(attend_kernel, kShared);
    const dim3 grid(static_cast<unsigned>(params.heads), static_cast<unsigned>(rows.sequences));
    launch_dependent(attend_kernel, grid, kThreads, kShared, stream, args);
}

}  // namespace quadrille::cuda
