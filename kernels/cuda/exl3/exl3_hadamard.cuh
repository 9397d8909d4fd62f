// SPDX-License-Identifier: Apache-2.0
// The 128-point Hadamard transforms of an EXL3 product. The factor 1/sqrt(128) of each is a power
// of two here, so that it costs no rounding: together they are the format's 1/128.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/exl3.h"

#include <cuda_fp16.h>

#include <cstdint>

namespace quadrille::cuda {

inline constexpr float kInputScale = 0.0625f;
inline constexpr float kOutputScale = 0.125f;

// Outputs: lane l of a warp holds elements 4l .. 4l+3. Strides ascend (1, 2, 4 .. 64) as in
// every implementation of the format, and the scale comes last.
__device__ __forceinline__ void hadamard128(float (&v)[4]) {
    const float a = v[0] + v[1];
    const float b = v[0] - v[1];
    const float c = v[2] + v[3];
    const float d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned stride = 1; stride < 32; stride *= 2) {
        const float sign = (lane & stride) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float other = __shfl_xor_sync(0xffffffffu, v[i], static_cast<int>(stride));
            v[i] = __fmaf_rn(v[i], sign, other);  // exactly other + v or other - v
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= kOutputScale;
}

// A number as the upper eleven bits of its mantissa and the rest, of which the tensor core reads as
// many. (NaN stays NaN; of an infinity comes NaN, as of any sum over both of its signs.)
__device__ __forceinline__ void cut_tf32(float x, uint32_t& high, uint32_t& low) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

// Inputs, on the tensor cores: one warp, one row, 128 inputs, no shuffles. Input 16 g + 2 c
// + h: one step over h in registers, H8 over c as the A operand times the inputs as B, then the
// sums, which lie as an A operand wants them, times H8 over g as B. Entries of H are exact; numbers
// enter as two tf32 terms, good to 2^-21. A row's bits depend on nothing else: every kernel that
// rotates calls this.
class InputRotation {
  public:
    __device__ __forceinline__ explicit InputRotation(int lane) {
        // Entry (i, k) of H8 is -1 to the number of common bits of i and k. Number k = q + 4b of an
        // operand stands for 2q + b here, on both sides and in both products.
        const int c = lane / 4;
        const uint32_t sign = static_cast<uint32_t>(__popc(c & (2 * (lane % 4)))) << 31;
        even_ = __float_as_uint(0.25f) ^ sign;
        odd_ = even_ ^ static_cast<uint32_t>(c) << 31;
        static_assert(kInputScale == 0.25f * 0.25f);
    }

    // v: inputs 4l .. 4l+3 of lane l, scales: their suh, four halves. The results: with c = l / 4
    // and q = l % 4, pair[i] holds results 2c, 2c+1 of tile (16 inputs) 2q + i as fp16.
    __device__ __forceinline__ void operator()(uint32_t (&pair)[2], const float (&v)[4],
                                               uint2 scales) const {
        // Only rows 0 .. 7 of the first products are of use: the others are what costs nothing.
        const uint32_t h8[4] = {even_, odd_, odd_, even_};
        const float2 scale[2] = {__half22float2(*reinterpret_cast<const __half2*>(&scales.x)),
                                 __half22float2(*reinterpret_cast<const __half2*>(&scales.y))};
        uint32_t high[2][2];  // of the sums and the differences, inputs 4l and 4l + 2
        uint32_t low[2][2];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const float second = __fmul_rn(v[2 * b + 1], scale[b].y);
            cut_tf32(__fmaf_rn(v[2 * b], scale[b].x, second), high[0][b], low[0][b]);
            cut_tf32(__fmaf_rn(v[2 * b], scale[b].x, -second), high[1][b], low[1][b]);
        }
        float sum[2][4] = {};  // results 2c, and 2c + 1, of groups 2q, 2q + 1
        mma_tf32(sum[0], h8, low[0][0], low[0][1]);
        mma_tf32(sum[1], h8, low[1][0], low[1][1]);
        mma_tf32(sum[0], h8, high[0][0], high[0][1]);
        mma_tf32(sum[1], h8, high[1][0], high[1][1]);
        uint32_t more[4];
        uint32_t less[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) cut_tf32(sum[i % 2][i / 2], more[i], less[i]);
        float d[4] = {};
        mma_tf32(d, less, even_, odd_);
        mma_tf32(d, more, even_, odd_);
        const __half2 first = __floats2half2_rn(d[0], d[2]);
        const __half2 next = __floats2half2_rn(d[1], d[3]);
        pair[0] = *reinterpret_cast<const uint32_t*>(&first);
        pair[1] = *reinterpret_cast<const uint32_t*>(&next);
    }

    // The place of pair[0] among the words of its input tile for a group of 8 rows (exl3_rotate.h),
    // the first row's; 8 words further for every row. pair[1] belongs to the next tile.
    static __device__ __forceinline__ int word(int lane) {
        return lane / 4 % 4 * 2 + lane / 16;
    }
    static __device__ __forceinline__ int tile(int lane) {
        return lane % 4 * 2;
    }

  private:
    uint32_t even_;
    uint32_t odd_;
};

}  // namespace quadrille::cuda
