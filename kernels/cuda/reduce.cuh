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

// The warp_sum of each of kCount values (16 or 32), to the bit, with a fifth of the exchanges: lane
// i gets that of values[i * kCount / 32].
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&values)[kCount]) {
    static_assert(kCount == 16 || kCount == 32);
    const auto lane = threadIdx.x % 32;
#pragma unroll
    for (int stride = 16, left = kCount / 2; stride > 0; stride /= 2, left /= 2) {
        if (left == 0) {
            values[0] += __shfl_xor_sync(0xffffffffu, values[0], stride);
            continue;
        }
        const bool upper = (lane & static_cast<unsigned>(stride)) != 0;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            if (i >= left) break;
            const float other = upper ? values[i] : values[i + left];
            const float own = upper ? values[i + left] : values[i];
            values[i] = own + __shfl_xor_sync(0xffffffffu, other, stride);
        }
    }
    return values[0];
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
