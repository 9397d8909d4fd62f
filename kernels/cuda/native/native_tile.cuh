// SPDX-License-Identifier: Apache-2.0
// Tensor-core pieces of the native products. A lane of a warp (c = lane / 4, q = lane % 4) holds
// eight neighbouring inputs 8q .. 8q+7 of every 32, of columns c and c + 8 (weights) or of row c
// (activations): 16-byte loads, and the same permutation of inputs on both sides leaves sums alone.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/native/native_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace quadrille::cuda {

// Two floats as two bf16 terms each: high the rounded value, low the rounded rest.
__device__ __forceinline__ void split_bf16(float x, float y, uint32_t& high, uint32_t& low) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    const __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}

__device__ __forceinline__ void split_tf32(float x, uint32_t& high, uint32_t& low) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    const float rest = x - __uint_as_float(high);
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(rest));
}

// 16 bytes that are read once: their line leaves the caches first. L2 fetches 256 bytes of the row
// together: warps read rows in pieces of 128, and memory gives longer ones faster (4096 x 12288 at
// one row: 30.2 -> 28.3 us on an H200).
__device__ __forceinline__ uint4 load_once(const void* from) {
    uint4 all;
    asm volatile("ld.global.cs.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(all.x), "=r"(all.y), "=r"(all.z), "=r"(all.w)
                 : "l"(from));
    return all;
}

// Eight neighbouring inputs: `count` of them exist (<= 0: none), the others are zero. `aligned`:
// the address of the first is a multiple of 16 bytes.
struct Eight16 {
    uint32_t pair[4];
};
__device__ __forceinline__ Eight16 load_eight(const uint16_t* from, int64_t count, bool aligned) {
    Eight16 value{};
    if (count >= 8 && aligned) {
        const uint4 all = load_once(from);
        value = {all.x, all.y, all.z, all.w};
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i < count) value.pair[i / 2] |= static_cast<uint32_t>(from[i]) << (16 * (i % 2));
        }
    }
    return value;
}
__device__ __forceinline__ void load_eight(float (&value)[8], const float* from, int64_t count,
                                           bool aligned) {
    if (count >= 8 && aligned) {
        const float4 a = reinterpret_cast<const float4*>(from)[0];
        const float4 b = reinterpret_cast<const float4*>(from)[1];
        value[0] = a.x, value[1] = a.y, value[2] = a.z, value[3] = a.w;
        value[4] = b.x, value[5] = b.y, value[6] = b.z, value[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = i < count ? from[i] : 0.0f;
    }
}

// Activations of 32 inputs of 8 rows: as bf16 (high 4, low 4) or tf32 (high 8, low 8) words.
template <bool kBf16>
struct Activations {
    uint32_t high[kBf16 ? 4 : 8];
    uint32_t low[kBf16 ? 4 : 8];

    __device__ __forceinline__ void split(const float (&x)[8]) {
        if constexpr (kBf16) {
#pragma unroll
            for (int i = 0; i < 4; ++i) split_bf16(x[2 * i], x[2 * i + 1], high[i], low[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) split_tf32(x[i], high[i], low[i]);
        }
    }
};

// Weights of 32 inputs of columns c and c + 8, as they lie in memory. They are read once, so their
// lines leave the caches first: code, activations and states stay there.
template <Dtype kDtype>
struct Weights {
    Eight16 row[2];

    __device__ __forceinline__ void load(const void* weights, const int64_t (&offset)[2],
                                         const int64_t (&count)[2], bool aligned) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            row[r] =
                load_eight(static_cast<const uint16_t*>(weights) + offset[r], count[r], aligned);
        }
    }
};
template <>
struct Weights<Dtype::f32> {
    float row[2][8];

    __device__ __forceinline__ void load(const void* weights, const int64_t (&offset)[2],
                                         const int64_t (&count)[2], bool aligned) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            load_eight(row[r], static_cast<const float*>(weights) + offset[r], count[r], aligned);
        }
    }
};

// acc += weights x activations over 32 inputs.
__device__ __forceinline__ void multiply(float (&acc)[4], const Weights<Dtype::bf16>& w,
                                         const Activations<true>& x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint32_t a[4] = {w.row[0].pair[2 * j], w.row[1].pair[2 * j], w.row[0].pair[2 * j + 1],
                               w.row[1].pair[2 * j + 1]};
        mma_bf16(acc, a, x.high[2 * j], x.high[2 * j + 1]);
        mma_bf16(acc, a, x.low[2 * j], x.low[2 * j + 1]);
    }
}
__device__ __forceinline__ void multiply(float (&acc)[4], const Weights<Dtype::f16>& w,
                                         const Activations<false>& x) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        // Every fp16 number is a tf32 number.
        const float2 first = __half22float2(*reinterpret_cast<const __half2*>(&w.row[0].pair[j]));
        const float2 second = __half22float2(*reinterpret_cast<const __half2*>(&w.row[1].pair[j]));
        const uint32_t a[4] = {__float_as_uint(first.x), __float_as_uint(second.x),
                               __float_as_uint(first.y), __float_as_uint(second.y)};
        mma_tf32(acc, a, x.high[2 * j], x.high[2 * j + 1]);
        mma_tf32(acc, a, x.low[2 * j], x.low[2 * j + 1]);
    }
}
__device__ __forceinline__ void multiply(float (&acc)[4], const Weights<Dtype::f32>& w,
                                         const Activations<false>& x) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t high[4];
        uint32_t low[4];
        split_tf32(w.row[0][2 * j], high[0], low[0]);
        split_tf32(w.row[1][2 * j], high[1], low[1]);
        split_tf32(w.row[0][2 * j + 1], high[2], low[2]);
        split_tf32(w.row[1][2 * j + 1], high[3], low[3]);
        mma_tf32(acc, high, x.high[2 * j], x.high[2 * j + 1]);
        mma_tf32(acc, high, x.low[2 * j], x.low[2 * j + 1]);
        mma_tf32(acc, low, x.high[2 * j], x.high[2 * j + 1]);
    }
}

// Inputs [first, first + width) of segment s.
struct InputRange {
    int64_t first;
    int64_t width;
};
QUADRILLE_HOST_DEVICE constexpr InputRange segment_inputs(const Matrix& w, int32_t s) {
    if (w.segments == 1) return {0, w.k};
    const int64_t* bounds = w.segment.data();
    return {bounds[s], bounds[s + 1] - bounds[s]};
}

}  // namespace quadrille::cuda
