// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block in a fixed order, whatever else runs.
#pragma once

namespace quadrille::cuda {

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, stride);
    }
    return value;
}

// The sum over a block of kThreads threads, for all of them. `shared`: kThreads / 32 floats that
// nobody reads or writes around the call without a barrier.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* shared) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) total += shared[w];
    __syncthreads();
    return total;
}

}  // namespace quadrille::cuda
