// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections: the gates of one site and the two mixes of the residual
// streams. All fp32.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/swiglu.cuh"
#include "kernels/cuda/weight.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 256;  // inputs of one thread block: the cut depends on their number only
constexpr int kRows = 8;
constexpr int kTogether = 4;     // outputs whose weights a warp loads at once
constexpr unsigned kBatch = 64;  // chunks whose sums are read together
constexpr int kMaxOutputs = 2 * kMaxStreams + kMaxStreams * kMaxStreams;

struct Gates {
    View<float> pre;
    View<float> post;
    View<float> mix;
    View<const float> streams;
    Matrix fn;
    const float* base;
    const float* scale;
    HyperParams params;
    float* partial;  // (row group, chunk, kRows, outputs + 1): products, sum of squares
    int32_t* counters;
};

// c (s, s) of one row, c[i] element (i / s, i % s): softmax over rows, then Sinkhorn.
__device__ void sinkhorn_serial(float* c, int32_t s, const HyperParams& params) {
    const float eps = params.sinkhorn_eps;
    for (int32_t a = 0; a < s; ++a) {
        float largest = c[a * s];
        for (int32_t b = 1; b < s; ++b) largest = fmaxf(largest, c[a * s + b]);
        float sum = 0.0f;
        for (int32_t b = 0; b < s; ++b) sum += c[a * s + b] = expf(c[a * s + b] - largest);
        for (int32_t b = 0; b < s; ++b) c[a * s + b] = c[a * s + b] / sum + eps;
    }
    for (int32_t pass = 0; pass < 2 * params.sinkhorn_iterations - 1; ++pass) {
        const int32_t inside = pass % 2 == 0 ? s : 1;
        const int32_t across = pass % 2 == 0 ? 1 : s;
        for (int32_t line = 0; line < s; ++line) {
            float sum = eps;
            for (int32_t i = 0; i < s; ++i) sum += c[line * across + i * inside];
            for (int32_t i = 0; i < s; ++i) c[line * across + i * inside] /= sum;
        }
    }
}

// The same for four streams, one element a lane of a group of sixteen.
__device__ float sinkhorn_four(float c, const HyperParams& params) {
    const auto group_sum = [](float value, int first, int second) {
        value += __shfl_xor_sync(0xffffffffu, value, first);
        return value + __shfl_xor_sync(0xffffffffu, value, second);
    };
    float largest = fmaxf(c, __shfl_xor_sync(0xffffffffu, c, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    c = expf(c - largest);
    c = c * __frcp_rn(group_sum(c, 1, 2)) + params.sinkhorn_eps;
    c *= __frcp_rn(group_sum(c, 4, 8) + params.sinkhorn_eps);
    for (int32_t i = 1; i < params.sinkhorn_iterations; ++i) {
        c *= __frcp_rn(group_sum(c, 1, 2) + params.sinkhorn_eps);
        c *= __frcp_rn(group_sum(c, 4, 8) + params.sinkhorn_eps);
    }
    return c;
}

// sums[i * kUsed + r] += a lane's products of row r and output i * kWarps, or, where i * kWarps is
// `squares`, of the row and itself. An element of a row is read from shared memory once for all.
template <class Weight, int kSums>
__device__ void add_products(float (&sums)[kSums], const Weight (&weight)[kTogether][kChunk / 32],
                             const float (&x)[kRows][kChunk], int32_t count, int32_t squares) {
    constexpr int kUsed = kSums / kTogether;
#pragma unroll
    for (int p = 0; p < kChunk / 32; ++p) {
        const int c = p * 32 + static_cast<int>(threadIdx.x) % 32;
        float value[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) value[i] = c < count ? value_of(weight[i][p]) : 0.0f;
#pragma unroll
        for (int r = 0; r < kUsed; ++r) {
            const float in = x[r][c];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                sums[i * kUsed + r] += (i * kWarps < squares ? value[i] : in) * in;
            }
        }
    }
}

// Products of this block's inputs and the sums of squares, of at most kUsed rows, to memory. The
// weights are under way before the kernel that makes the streams has ended.
template <class Weight, int kUsed>
__device__ void gate_products(const Gates& args, float (&x)[kRows][kChunk], int32_t rows) {
    const int64_t first = int64_t{blockIdx.x} * kChunk;
    const auto count = static_cast<int32_t>(min(static_cast<int64_t>(kChunk), args.fn.k - first));
    const int64_t row = int64_t{blockIdx.y} * kRows;
    const auto outputs = static_cast<int32_t>(args.fn.n);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* to =
        args.partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kRows * (outputs + 1);
    for (int32_t start = 0; start <= outputs; start += kTogether * kWarps) {
        Weight weight[kTogether][kChunk / 32];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            // What does not exist is another's weight, and not used.
            const int32_t j = start + i * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
            const Weight* from = static_cast<const Weight*>(args.fn.weights) +
                                 min(j, outputs - 1) * args.fn.k + first;
#pragma unroll
            for (int p = 0; p < kChunk / 32; ++p) {
                weight[i][p] = from[min(p * 32 + lane, count - 1)];
            }
        }
        if (start == 0) {
            wait_for_earlier_kernels();
            static_assert(kChunk == kThreads);
            const int c = static_cast<int>(threadIdx.x);
#pragma unroll
            for (int r = 0; r < kUsed; ++r) {
                x[r][c] = r < rows && c < count
                              ? args.streams.data[(row + r) * args.streams.stride + first + c]
                              : 0.0f;
            }
            __syncthreads();
        }
        const int32_t first_output = start + static_cast<int32_t>(threadIdx.x) / 32;
        float sums[kTogether * kUsed] = {};
        add_products(sums, weight, x, count, outputs - first_output);
        const float sum = warp_sums(sums);
        const int index = lane * (kTogether * kUsed) / 32;
        const int32_t j = first_output + index / kUsed * kWarps;
        if (j <= outputs) to[index % kUsed * (outputs + 1) + j] = sum;
    }
}

// One row by a warp: the chunks in order, then the gates. t: outputs + 1 floats of this warp.
__device__ void finish_gates(const Gates& args, const float* base, const float* scale, int r,
                             float* t) {
    const auto outputs = static_cast<int32_t>(args.fn.n);
    const int32_t s = args.params.streams;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = int64_t{blockIdx.y} * kRows + r;
    for (int32_t j = lane; j <= outputs; j += 32) {
        float sum = 0.0f;
        for (unsigned first = 0; first < gridDim.x; first += kBatch) {
            float part[kBatch];
#pragma unroll
            for (unsigned i = 0; i < kBatch; ++i) {
                const int64_t cell = (int64_t{blockIdx.y} * gridDim.x + first + i) * kRows + r;
                part[i] =
                    first + i < gridDim.x ? __ldcg(args.partial + cell * (outputs + 1) + j) : 0.0f;
            }
#pragma unroll
            for (unsigned i = 0; i < kBatch; ++i) sum += part[i];
        }
        t[j] = sum;
    }
    __syncwarp();
    const float inverse =
        1.0f / sqrtf(t[outputs] / static_cast<float>(args.fn.k) + args.params.norm_eps);
    if (lane < s) {
        args.pre.data[row * args.pre.stride + lane] =
            sigmoid(t[lane] * inverse * scale[0] + base[lane]) + args.params.sinkhorn_eps;
        args.post.data[row * args.post.stride + lane] =
            2.0f * sigmoid(t[s + lane] * inverse * scale[1] + base[s + lane]);
    }
    float* mix = args.mix.data + row * args.mix.stride;
    const auto element = [&](int32_t i) {
        return t[2 * s + i] * inverse * scale[2] + base[2 * s + i];
    };
    if (s == 4) {
        const float c = sinkhorn_four(element(lane % 16), args.params);
        if (lane < 16) mix[lane] = c;
    } else if (lane == 0) {
        for (int32_t i = 0; i < s * s; ++i) mix[i] = element(i);
        sinkhorn_serial(mix, s, args.params);
    }
}

template <class Weight>
__global__ void __launch_bounds__(kThreads) gates_kernel(const __grid_constant__ Gates args) {
    __shared__ float x[kRows][kChunk];
    __shared__ float t[kRows][kMaxOutputs + 1];
    __shared__ float ends[kMaxOutputs + 3];
    __shared__ int32_t arrived;
    const auto rows = static_cast<int32_t>(
        min(static_cast<int64_t>(kRows), args.streams.rows - int64_t{blockIdx.y} * kRows));
    let_next_kernel_start();
    // Base and scales: on their way with the weights, wanted last.
    const auto outputs = static_cast<int>(args.fn.n);
    const int thread = static_cast<int>(threadIdx.x);
    const float* from = thread < outputs ? args.base + thread : args.scale + (thread - outputs);
    const float end = thread < outputs + 3 ? *from : 0.0f;
    if (rows <= kRows / 2) {
        gate_products<Weight, kRows / 2>(args, x, rows);
    } else {
        gate_products<Weight, kRows>(args, x, rows);
    }
    if (thread < outputs + 3) ends[thread] = end;
    __syncthreads();
    if (threadIdx.x == 0) {
        // Releases the whole block's sums, which the barrier has ordered before.
        int32_t* counter = args.counters + blockIdx.y;
        int32_t before = 0;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(counter)
                     : "memory");
        arrived = before;
        if (before == static_cast<int32_t>(gridDim.x) - 1) *counter = 0;
    }
    __syncthreads();
    if (arrived != static_cast<int32_t>(gridDim.x) - 1) return;
    const int warp = thread / 32;
    if (warp < rows) finish_gates(args, ends, ends + outputs, warp, t[warp]);
}

__global__ void hyper_in_kernel(View<float> out, View<const float> streams, View<const float> pre) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const float* x = streams.data + r * streams.stride + c;
        const float* weight = pre.data + r * pre.stride;
        float sum = weight[0] * x[0];
        for (int64_t j = 1; j < pre.cols; ++j) sum += weight[j] * x[j * out.cols];
        out.data[r * out.stride + c] = sum;
    }
}

__global__ void hyper_out_kernel(View<float> streams, View<const float> y, View<const float> post,
                                 View<const float> mix) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= y.cols) return;
    const auto s = static_cast<int32_t>(post.cols);
    for (int64_t r = blockIdx.y; r < y.rows; r += gridDim.y) {
        float* x = streams.data + r * streams.stride + c;
        const float* p = post.data + r * post.stride;
        const float* m = mix.data + r * mix.stride;
        const float value = y.data[r * y.stride + c];
        float in[kMaxStreams];
#pragma unroll
        for (int32_t i = 0; i < kMaxStreams; ++i) in[i] = i < s ? x[i * y.cols] : 0.0f;
        for (int32_t j = 0; j < s; ++j) {
            float sum = p[j] * value;
#pragma unroll
            for (int32_t i = 0; i < kMaxStreams; ++i) {
                if (i < s) sum += m[i * s + j] * in[i];
            }
            x[j * y.cols] = sum;
        }
    }
}

__global__ void stream_mean_kernel(View<float> out, View<const float> streams, int32_t count) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const float* x = streams.data + r * streams.stride + c;
        float sum = x[0];
        for (int32_t j = 1; j < count; ++j) sum += x[j * out.cols];
        out.data[r * out.stride + c] = sum / static_cast<float>(count);
    }
}

dim3 element_grid(int64_t rows, int64_t cols) {
    return {static_cast<unsigned>((cols + kThreads - 1) / kThreads),
            static_cast<unsigned>(std::min<int64_t>(rows, 65535)), 1};
}

}  // namespace

void CudaBackend::hyper_weights(View<float> pre, View<float> post, View<float> mix,
                                View<const float> streams, const Matrix& fn, const float* base,
                                const float* scale, const HyperParams& params) {
    contract::hyper_weights(pre, post, mix, streams, fn, base, scale, params);
    if (streams.rows == 0) return;
    const int64_t groups = (streams.rows + kRows - 1) / kRows;
    const int64_t chunks = (fn.k + kChunk - 1) / kChunk;
    Workspace::Scope scope(workspace_);
    auto* partial = scope.take<float>(groups * chunks * kRows * (fn.n + 1));
    int32_t* counters = workspace_.counters(groups);
    const Gates gates = {pre, post, mix, streams, fn, base, scale, params, partial, counters};
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(groups));
    const auto kernel = fn.dtype == Dtype::bf16  ? gates_kernel<__nv_bfloat16>
                        : fn.dtype == Dtype::f16 ? gates_kernel<__half>
                                                 : gates_kernel<float>;
    launch_dependent(kernel, grid, kThreads, 0, stream_.get(), gates);
}

void CudaBackend::hyper_in(View<float> out, View<const float> streams, View<const float> pre) {
    contract::hyper_in(out, streams, pre);
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(hyper_in_kernel, element_grid(out.rows, out.cols), kThreads, 0, stream_.get(),
                     out, streams, pre);
}

void CudaBackend::hyper_out(View<float> streams, View<const float> y, View<const float> post,
                            View<const float> mix) {
    contract::hyper_out(streams, y, post, mix);
    if (y.rows == 0 || y.cols == 0) return;
    launch_dependent(hyper_out_kernel, element_grid(y.rows, y.cols), kThreads, 0, stream_.get(),
                     streams, y, post, mix);
}

void CudaBackend::stream_mean(View<float> out, View<const float> streams, int32_t streams_count) {
    contract::stream_mean(out, streams, streams_count);
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(stream_mean_kernel, element_grid(out.rows, out.cols), kThreads, 0,
                     stream_.get(), out, streams, streams_count);
}

}  // namespace quadrille::cuda
