// SPDX-License-Identifier: Apache-2.0
// The 128-point Hadamard transform of a warp: lane l holds elements 4l .. 4l+3. Strides ascend (1,
// 2, 4 .. 64) as in every implementation of the format, and the scale comes last.
#pragma once

#include "kernels/exl3.h"

namespace quadrille::cuda {

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
    for (int i = 0; i < 4; ++i) v[i] *= exl3::kHadamardScale;
}

}  // namespace quadrille::cuda
