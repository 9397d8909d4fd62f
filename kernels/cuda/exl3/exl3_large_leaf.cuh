// SPDX-License-Identifier: Apache-2.0
// A leaf (128 inputs) of the EXL3 product of many rows: its weights, and their products.
#pragma once

#include "kernels/cuda/exl3/exl3_large.cuh"

namespace quadrille::cuda {

// The tiles of a leaf of the warp, once its copies have ended.
template <int kBits, bool kMul1, int kRowGroups>
class LargeKernel<kBits, kMul1, kRowGroups>::Tiles {
  public:
    __device__ Tiles(const LargeKernel& kernel, int step) : place_(lane()) {
        copy_async_wait<2 * kStages - 1>();
        __syncwarp();
        multiplier_ = kernel.b_.multiplier;
        addend_ = kernel.b_.addend;
        stage_ = reinterpret_cast<const uint32_t*>(kernel.shared_ + ring()) +
                 step % kStages * kStageWords;
    }

    __device__ void decode(uint32_t (&a)[4], int t, int c) const {
        const LaneWindow<kBits> window = place_.load(stage_ + (2 * t + c) * kTileWords);
        decode_tile<kBits, kMul1>(a, window, multiplier_, addend_);
    }

  private:
    LanePlace<kBits> place_;
    uint32_t multiplier_;
    uint32_t addend_;
    const uint32_t* stage_;
};

// The leaf's weights of the warp.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::decode(Weights& a, int step) {
    const Tiles tiles(*this, step);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) tiles.decode(a[t][c], t, c);
    }
    __syncwarp();  // every lane has read what is filled next
    fill(step + kStages);
}

// sums += the leaf of every row.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::multiply(Sums& sums, const Weights& a,
                                                                int step) const {
    const unsigned char* rows = shared_ + kSumBytes + step % 2 * kInputBytes + lane() * 8;
#pragma unroll
    for (int first = 0; first < kRowGroups; first += kTogether) {
        if (8 * first >= b_.rows) break;
        float acc[kTogether][2][4] = {};
#pragma unroll
        for (int t = 0; t < 8; ++t) {
#pragma unroll
            for (int g = 0; g < kTogether; ++g) {
                const uint2 b =
                    *reinterpret_cast<const uint2*>(rows + (first + g) * kGroupBytes + t * 256);
                mma_f16(acc[g][0], a[t][0], b.x, b.y);
                mma_f16(acc[g][1], a[t][1], b.x, b.y);
            }
        }
#pragma unroll
        for (int g = 0; g < kTogether; ++g) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[first + g][i / 4][i % 4] += acc[g][i / 4][i % 4];
        }
    }
}

// Both, of few rows: a weight is held no longer than its products take.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::decode_and_multiply(Sums& sums, int step) {
    const Tiles tiles(*this, step);
    const unsigned char* rows = shared_ + kSumBytes + step % 2 * kInputBytes + lane() * 8;
    float acc[kRowGroups][2][4] = {};
#pragma unroll
    for (int t = 0; t < 8; ++t) {
        uint32_t a[2][4];
#pragma unroll
        for (int c = 0; c < 2; ++c) tiles.decode(a[c], t, c);
#pragma unroll
        for (int g = 0; g < kRowGroups; ++g) {
            const uint2 b = *reinterpret_cast<const uint2*>(rows + g * kGroupBytes + t * 256);
            mma_f16(acc[g][0], a[0], b.x, b.y);
            mma_f16(acc[g][1], a[1], b.x, b.y);
        }
    }
    __syncwarp();  // every lane has read what is filled next
    fill(step + kStages);
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[g][i / 4][i % 4] += acc[g][i / 4][i % 4];
    }
}

}  // namespace quadrille::cuda
