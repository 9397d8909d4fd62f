// SPDX-License-Identifier: Apache-2.0
// What makes a row of KDA ready for the recurrence: one arithmetic for every kernel, in straight
// code over a few rows at a time.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace quadrille::cuda {

constexpr float kNormEps = 1e-6f;  // of the l2 norms of q and k, added to the sum
constexpr int kTogether = 4;       // rows of a channel that are under way together

// sigmoid() of each number to the bit, but in straight code, so that they are under way together:
// its division has a branch of its own for results below 2^-126.
template <int kCount>
__device__ __forceinline__ void sigmoids(float (&x)[kCount]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        x[i] = 1.0f + expf(-x[i]);
        most = fmaxf(most, x[i]);
    }
    if (most >= 0x1p126f) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[i] = 1.0f / x[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        float inverse;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x[i]));
        x[i] = fmaf(inverse, -fmaf(x[i], inverse, -1.0f), inverse);
    }
}

// The convolution and its SiLU for a channel of kRows rows, from kTaps - 1 inputs before them on.
template <int kTaps, int kRows>
__device__ __forceinline__ void short_convolution(float (&sum)[kRows], const float (&weight)[kTaps],
                                                  const float* in) {
    float factor[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
        sum[row] = 0.0f;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) sum[row] = fmaf(weight[j], in[row + j], sum[row]);
        factor[row] = sum[row];
    }
    sigmoids(factor);
#pragma unroll
    for (int row = 0; row < kRows; ++row) sum[row] *= factor[row];
}
// Weights of a channel: missing taps come first, as zeros.
template <int kTaps>
__device__ __forceinline__ void load_taps(float (&weight)[kTaps], const float* weights, int taps) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
        weight[j] = j >= kTaps - taps ? weights[j - (kTaps - taps)] : 0.0f;
    }
}

// f of kRows rows becomes their decay.
template <int kRows>
__device__ __forceinline__ void decays(float (&f)[kRows], float rate, float bias, float bound) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) f[row] = rate * (f[row] + bias);
    sigmoids(f);
#pragma unroll
    for (int row = 0; row < kRows; ++row) f[row] = expf(bound * f[row]);
}

// q and k of a row over their l2 norms, by a warp: a lane has every 32nd number. Returns the
// product of the results.
template <int kDim>
__device__ __forceinline__ float normalise(float (&q)[(kDim + 31) / 32],
                                           float (&k)[(kDim + 31) / 32], const float* raw_q,
                                           const float* raw_k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float scale = 1.0f / sqrtf(static_cast<float>(kDim));
    float q_squares = 0.0f;
    float k_squares = 0.0f;
    float product = 0.0f;
#pragma unroll
    for (int j = 0; j < (kDim + 31) / 32; ++j) {
        if (lane + 32 * j >= kDim) continue;
        q[j] = raw_q[lane + 32 * j];
        k[j] = raw_k[lane + 32 * j];
        q_squares = fmaf(q[j], q[j], q_squares);
        k_squares = fmaf(k[j], k[j], k_squares);
        product = fmaf(q[j], k[j], product);
    }
    const float q_factor = scale / sqrtf(warp_sum(q_squares) + kNormEps);
    const float k_factor = 1.0f / sqrtf(warp_sum(k_squares) + kNormEps);
    product = warp_sum(product);
#pragma unroll
    for (int j = 0; j < (kDim + 31) / 32; ++j) {
        if (lane + 32 * j >= kDim) continue;
        q[j] *= q_factor;
        k[j] *= k_factor;
    }
    return product * q_factor * k_factor;
}

}  // namespace quadrille::cuda
