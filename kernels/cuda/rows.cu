// SPDX-License-Identifier: Apache-2.0
// Ops that work row by row without a product: embedding, norms, the gate of an MLP, sums, copies.
// All move each byte once; a row's sums run over a fixed number of threads in a fixed order.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/swiglu.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

namespace quadrille::cuda {

namespace {

constexpr int kNormThreads = 512;
constexpr int kHeld = 8;  // columns of a thread of rms_norm
constexpr int kThreads = 256;

// One thread per element; a grid row (y) per kRows rows would overflow for long prefills, so rows
// are walked.
dim3 element_grid(int64_t rows, int64_t cols) {
    const int64_t x = (cols + kThreads - 1) / kThreads;
    return {static_cast<unsigned>(x), static_cast<unsigned>(rows < 65535 ? rows : 65535), 1};
}

__device__ float weight_at(const void* weights, Dtype dtype, int64_t index) {
    switch (dtype) {
        case Dtype::bf16:
            return __bfloat162float(static_cast<const __nv_bfloat16*>(weights)[index]);
        case Dtype::f16:
            return __half2float(static_cast<const __half*>(weights)[index]);
        default:
            return static_cast<const float*>(weights)[index];
    }
}

__global__ void embed_kernel(View<float> out, const int32_t* tokens,
                             const __grid_constant__ Matrix table, int32_t copies) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= table.k) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const int32_t token = tokens[r];
        const float value = token < 0 || token >= table.n ? 0.0f
                                                          : weight_at(table.weights, table.dtype,
                                                                      int64_t{token} * table.k + c);
        for (int32_t copy = 0; copy < copies; ++copy) {
            out.data[r * out.stride + copy * table.k + c] = value;
        }
    }
}

// The first kHeld columns of a thread stay in registers; their weights are under way before the
// kernel that makes the row has ended.
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(View<float> out, View<const float> in, const float* weight, float eps) {
    __shared__ float shared[kNormThreads / 32];
    const auto cols = static_cast<int32_t>(in.cols);
    const auto first = static_cast<int32_t>(threadIdx.x);
    float held_weight[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int32_t c = first + i * kNormThreads;
        held_weight[i] = c < cols ? weight[c] : 0.0f;
    }
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const float* x = in.data + blockIdx.x * in.stride;
    float* y = out.data + blockIdx.x * out.stride;
    float held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int32_t c = first + i * kNormThreads;
        held[i] = c < cols ? x[c] : 0.0f;
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) squares += held[i] * held[i];
    for (int32_t c = first + kHeld * kNormThreads; c < cols; c += kNormThreads) {
        squares += x[c] * x[c];
    }
    const float sum = block_sum<kNormThreads>(squares, shared);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int32_t c = first + i * kNormThreads;
        if (c < cols) y[c] = held_weight[i] * (held[i] * scale);
    }
    for (int32_t c = first + kHeld * kNormThreads; c < cols; c += kNormThreads) {
        y[c] = weight[c] * (x[c] * scale);
    }
}

__global__ void __launch_bounds__(kNormThreads)
    layer_norm_kernel(View<float> out, View<const float> in, const float* __restrict__ weight,
                      const float* __restrict__ bias, float eps) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ float shared[kNormThreads / 32];
    const float* x = in.data + blockIdx.x * in.stride;
    float* y = out.data + blockIdx.x * out.stride;
    const auto count = static_cast<float>(in.cols);
    float part = 0.0f;
    for (int64_t c = threadIdx.x; c < in.cols; c += kNormThreads) part += x[c];
    const float mean = block_sum<kNormThreads>(part, shared) / count;
    part = 0.0f;
    for (int64_t c = threadIdx.x; c < in.cols; c += kNormThreads) {
        part += (x[c] - mean) * (x[c] - mean);
    }
    const float scale = 1.0f / sqrtf(block_sum<kNormThreads>(part, shared) / count + eps);
    for (int64_t c = threadIdx.x; c < in.cols; c += kNormThreads) {
        y[c] = (x[c] - mean) * scale * weight[c] + bias[c];
    }
}

__global__ void swiglu_kernel(View<float> out, View<const float> gate, View<const float> up,
                              float limit) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        out.data[r * out.stride + c] =
            swiglu(gate.data[r * gate.stride + c], up.data[r * up.stride + c], limit);
    }
}

__global__ void add_kernel(View<float> out, View<const float> in) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        out.data[r * out.stride + c] += in.data[r * in.stride + c];
    }
}

__global__ void tree_sum_kernel(View<float> out, const float* parts, int32_t count,
                                int64_t part_stride, const float* __restrict__ bias) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const float* p = parts + r * out.cols + c;
        float value = p[0];
        if (count > 1) value += p[part_stride];
        if (count > 2) value += p[2 * part_stride] + p[3 * part_stride];
        out.data[r * out.stride + c] = bias == nullptr ? value : value + bias[c];
    }
}

__global__ void copy_rows_kernel(View<float> out, View<const float> in, const int32_t* index) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= out.cols) return;
    for (int64_t r = blockIdx.y; r < out.rows; r += gridDim.y) {
        const int32_t from = index[r];
        if (from < 0 || from >= in.rows) continue;
        out.data[r * out.stride + c] = in.data[from * in.stride + c];
    }
}

}  // namespace

void check_image() {
    cudaFuncAttributes attributes{};
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(add_kernel));
    if (error == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorKind::device,
                std::string("this build has no code for the GPU (build option gpu_arch): ") +
                    cudaGetErrorString(error));
}

void CudaBackend::embed(View<float> out, const int32_t* tokens, const Matrix& table,
                        int32_t copies) {
    contract::embed(out, tokens, table, copies);
    if (out.rows == 0 || table.k == 0) return;
    launch_dependent(embed_kernel, element_grid(out.rows, table.k), kThreads, 0, stream_.get(), out,
                     tokens, table, copies);
}

void CudaBackend::rms_norm(View<float> out, View<const float> in, const float* weight, float eps) {
    contract::rms_norm(out, in, weight, eps);
    require(in.cols < (int64_t{1} << 30), "rms_norm: rows of fewer than 2^30");
    if (in.rows == 0) return;
    launch_dependent(rms_norm_kernel, static_cast<unsigned>(in.rows), kNormThreads, 0,
                     stream_.get(), out, in, weight, eps);
}

void CudaBackend::layer_norm(View<float> out, View<const float> in, const float* weight,
                             const float* bias, float eps) {
    contract::layer_norm(out, in, weight, bias, eps);
    if (in.rows == 0) return;
    launch_dependent(layer_norm_kernel, static_cast<unsigned>(in.rows), kNormThreads, 0,
                     stream_.get(), out, in, weight, bias, eps);
}

void CudaBackend::swiglu(View<float> out, View<const float> gate, View<const float> up,
                         float limit) {
    contract::swiglu(out, gate, up, limit);
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(swiglu_kernel, element_grid(out.rows, out.cols), kThreads, 0, stream_.get(),
                     out, gate, up, limit);
}

void CudaBackend::add(View<float> out, View<const float> in) {
    contract::add(out, in);
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(add_kernel, element_grid(out.rows, out.cols), kThreads, 0, stream_.get(), out,
                     in);
}

void tree_sum(View<float> out, const float* parts, int32_t count, int64_t part_stride,
              const float* bias, LaunchStream stream) {
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(tree_sum_kernel, element_grid(out.rows, out.cols), kThreads, 0, stream, out,
                     parts, count, part_stride, bias);
}

void CudaBackend::tree_sum(View<float> out, const float* parts, int32_t count,
                           int64_t part_stride) {
    contract::tree_sum(out, parts, count, part_stride);
    cuda::tree_sum(out, parts, count, part_stride, nullptr, stream_.get());
}

void CudaBackend::copy_rows(View<float> out, View<const float> in, const int32_t* index) {
    contract::copy_rows(out, in, index);
    if (out.rows == 0 || out.cols == 0) return;
    launch_dependent(copy_rows_kernel, element_grid(out.rows, out.cols), kThreads, 0, stream_.get(),
                     out, in, index);
}

}  // namespace quadrille::cuda
