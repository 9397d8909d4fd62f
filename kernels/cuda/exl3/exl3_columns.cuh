// SPDX-License-Identifier: Apache-2.0
// The outputs of the EXL3 product of many rows: scales, the tree over segments, bias, and where
// they go; for the product kernel itself (segments one after another) and for exl3_large_end.cu.
#pragma once

#include "kernels/cuda/exl3/exl3_hadamard.cuh"
#include "kernels/cuda/exl3/exl3_product.h"

#include <cuda_fp16.h>

namespace quadrille::cuda {

// Sums of a unit, of 128 columns and a tile's rows.
__device__ __forceinline__ float* large_cell(const Exl3Product& args, int32_t tile_rows,
                                             int64_t tile, int64_t column_block, int64_t unit) {
    return args.partial + ((tile * args.column_blocks + column_block) * args.units + unit) *
                              (tile_rows * exl3::kBlock);
}

// Four columns of a lane, of one segment after another.
class LargeOutput {
  public:
    __device__ LargeOutput(const Exl3Product& args, const Matrix& w, int32_t member,
                           int32_t column_block, int32_t segment)
        : args_(args), w_(w), segment_(segment) {
        n_ = column_block * exl3::kBlock + static_cast<int32_t>(threadIdx.x) % 32 * 4;
        data_ = args.out.data + member * args.out.member_stride + n_;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            svh_[i] = __half2float(reinterpret_cast<const __half*>(w.svh)[n_ + i]);
        }
    }

    // v: the transformed sums of the segment. (s0 + s1) + (s2 + s3): what is still to be added to
    // is the output itself and, for s2, `kept` (four floats), both the thread's own.
    __device__ void add(int32_t position, float (&v)[4], float* kept) const {
        const int64_t row = args_.order == nullptr ? position : args_.order[position];
        float* out = data_ + row * args_.out.row_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], svh_[i]);
        if (args_.out.by_segment) {
            store(out + segment_ * args_.out.segment_stride, v);
            return;
        }
        if (segment_ == 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) kept[i] = v[i];
            return;
        }
        if (segment_ == 3) {
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = kept[i] + v[i];
        }
        const bool last = segment_ + 1 == w_.segments;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (n_ + i >= w_.n) continue;
            if (segment_ > 0) v[i] = out[i] + v[i];
            if (last && w_.bias != nullptr) v[i] = v[i] + w_.bias[n_ + i];
        }
        store(out, v);
    }

  private:
    __device__ void store(float* out, const float (&v)[4]) const {
        if (n_ + 4 <= w_.n && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
            *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (n_ + i < w_.n) out[i] = v[i];
        }
    }

    const Exl3Product& args_;
    const Matrix& w_;
    int32_t segment_;
    int32_t n_;
    float* data_;
    float svh_[4];
};

}  // namespace quadrille::cuda
