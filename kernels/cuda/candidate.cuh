// SPDX-License-Identifier: Apache-2.0
// A column of a row and its value, and the best of those that the threads of a warp or block hold.
// Ties go to the lowest column.
#pragma once

#include <cstdint>

namespace quadrille::cuda {

inline constexpr int32_t kNone = INT32_MAX;

// The better of two candidates: the larger value, then the lower column. kNone loses to all.
struct Candidate {
    float value;
    int32_t column;

    __device__ bool beats(const Candidate& other) const {
        if (column == kNone || other.column == kNone) return column != kNone;
        return value > other.value || (value == other.value && column < other.column);
    }
};

__device__ inline Candidate warp_best(Candidate mine) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, stride),
                                 __shfl_xor_sync(0xffffffffu, mine.column, stride)};
        if (other.beats(mine)) mine = other;
    }
    return mine;
}

template <int kCount>
__device__ Candidate block_best(Candidate mine, Candidate* shared) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Candidate best = lane < kCount / 32 ? shared[lane] : Candidate{0.0f, kNone};
    best = warp_best(best);
    __syncthreads();
    return best;
}

}  // namespace quadrille::cuda
