// SPDX-License-Identifier: Apache-2.0
// The inputs of an EXL3 product in shared memory, in the order of the B operand (rotate.h): rotated
// by the thread block itself, or copied from where a kernel before it has left them.
#pragma once

#include "kernels/cuda/exl3_product.cuh"

namespace quadrille::cuda {

// Inputs 4l .. 4l+3 of a block of a row, zero behind the last.
__device__ __forceinline__ void load_inputs(float (&v)[4], const float* x, int32_t left) {
    if (left >= 4) {
        const float4 in = __ldcg(reinterpret_cast<const float4*>(x));
        v[0] = in.x;
        v[1] = in.y;
        v[2] = in.z;
        v[3] = in.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = i < left ? x[i] : 0.0f;
}

// All of the team's inputs (no more than kInputBlocks): every row scaled, rotated and rounded to
// fp16. A warp takes a block of a row, four inputs a lane; few rows share the warps.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::rotate_inputs() {
    constexpr int kTogether = kGroups == 1 ? 4 : 2;
    const int shift = rows_ <= 1 ? 0 : rows_ <= 2 ? 1 : rows_ <= 4 ? 2 : 3;
    const int stride = kTeamWarps >> shift;
    const int start = warp() >> shift;
    const int channel = block_ * exl3::kBlock + 4 * lane();
    const F16* suh = w_->suh + channel;
    const auto k = static_cast<int32_t>(w_->k);
#pragma unroll 1
    for (int row = warp() & ((1 << shift) - 1); row < rows_; row += kTeamWarps) {
        const float* x = args_.x + (first_ + row) * args_.x_stride + channel;
        // Inputs 4l .. 4l+3 are two pairs of tile l/4: pair (k, k+1) is word k/8 of lane k%8/2.
        const int target = (lane() / 4 * kGroups + row / 8) * 32 + row % 8 * 4 + 2 * (lane() % 2);
        unsigned char* to = shared_ + inputs_ + target * 8 + lane() % 4 / 2 * 4;
#pragma unroll 1
        for (int begin = start; begin < steps_; begin += kTogether * stride) {
            uint2 scales[kTogether] = {};
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                const int block = begin + t * stride;
                if (block < steps_) {
                    scales[t] = *reinterpret_cast<const uint2*>(suh + block * exl3::kBlock);
                }
            }
            wait_for_earlier_kernels();  // the scales are under way
            float v[kTogether][4] = {};
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                const int at = (begin + t * stride) * exl3::kBlock;
                if (begin + t * stride < steps_) load_inputs(v[t], x + at, k - channel - at);
            }
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                const int block = begin + t * stride;
                if (block >= steps_) break;
                const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&scales[t].x));
                const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&scales[t].y));
                // Never fused with what follows: the bits are those of rotate.cu.
                v[t][0] = __fmul_rn(v[t][0], low.x);
                v[t][1] = __fmul_rn(v[t][1], low.y);
                v[t][2] = __fmul_rn(v[t][2], high.x);
                v[t][3] = __fmul_rn(v[t][3], high.y);
                hadamard128(v[t]);
                unsigned char* slot = to + block * kInputBytes;
                *reinterpret_cast<__half2*>(slot) = __floats2half2_rn(v[t][0], v[t][1]);
                *reinterpret_cast<__half2*>(slot + 8) = __floats2half2_rn(v[t][2], v[t][3]);
            }
        }
    }
    wait_for_earlier_kernels();
}

// The same out of memory, where a kernel before this one has rotated them.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::copy_inputs(int first, int last) {
    constexpr int kTogether = kGroups < 4 ? kGroups : 4;
    wait_for_earlier_kernels();
    const int64_t tiles = args_.rotated_tiles;
    // 16 bytes a thread: 128 of them are one row group of one block, halves of a team take two.
    const int of_team = opaque(static_cast<int>(threadIdx.x)) % kTeamThreads;
    const int thread = of_team % 128;
    const int half = of_team / 128;
    const uint4* from =
        reinterpret_cast<const uint4*>(args_.rotated + member() * args_.rotated_stride +
                                       (first_ / 8 * tiles + int64_t{block_} * 8) * 32) +
        thread;
#pragma unroll 1
    for (int item = half; item < (min(last, steps_) - first) * (kGroups / kTogether); item += 2) {
        const int block = first + item / (kGroups / kTogether);
        const int begin = item % (kGroups / kTogether) * kTogether;
        unsigned char* to = shared_ + inputs_ + block % kInputBlocks * kInputBytes +
                            (thread / 16 * kGroups + begin) * 256 + thread % 16 * 16;
        uint4 v[kTogether];
#pragma unroll
        for (int g = 0; g < kTogether; ++g) {
            if (begin + g < groups_) v[g] = __ldcg(from + ((begin + g) * tiles + block * 8) * 16);
        }
#pragma unroll
        for (int g = 0; g < kTogether; ++g) {
            if (begin + g < groups_) *reinterpret_cast<uint4*>(to + g * 256) = v[g];
        }
    }
}

}  // namespace quadrille::cuda
