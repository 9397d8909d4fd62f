// SPDX-License-Identifier: Apache-2.0
// An EXL3 product in halves (Exl3Tiling::halves): a thread block sums one group of leaves of 64
// columns, so that only a quarter of the sums goes through memory.
#pragma once

#include "kernels/cuda/exl3/exl3_product.cuh"

namespace quadrille::cuda {

// The group of a thread block in halves: the leaves of its teams, added in order by all threads.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::sum_group() {
    fill(0, 0);
    prefetch_scales();
    take_inputs();
    copy_async_wait<0>();
    __syncwarp();
    // Behind all rings and inputs: (leaf, row, column).
    float* leaves =
        reinterpret_cast<float*>(shared_ + args_.teams * (kTeamWarps * kStageBytes + kInputBytes));
    if (steps_ > 0) {
        Sums acc = {};
        multiply(acc, shared_, shared_ + inputs_ + lane() * 8);
        float* to = leaves + (team() * kRows + lane() % 4 * 2) * kHalfStride +
                    warp() * exl3::kTile + lane() / 4;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[(8 * g + i % 2) * kHalfStride + i / 2 * 8] = acc[g][i];
            }
        }
    }
    __syncthreads();
    float* to = cell(unit_) + half() * 64;
#pragma unroll 1
    for (int item = static_cast<int>(threadIdx.x); item < 16 * rows_; item += 32 * warps()) {
        const int row = item / 16;
        const int column = item % 16 * 4;
        float4 sum = {};
#pragma unroll
        for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
            if (leaf >= leaves_) break;
            const float4 part = *reinterpret_cast<const float4*>(
                leaves + (leaf * kRows + row) * kHalfStride + column);
            sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
        store_sums(to + row * exl3::kBlock + column, sum);
    }
}

}  // namespace quadrille::cuda
