// SPDX-License-Identifier: Apache-2.0
// A column of a row and its value, and the best of those that the threads of a warp or block hold.
// Ties go to the lowest column.
#pragma once

#include <cstdint>

namespace quadrille::cuda {

inline constexpr int32_t kNone = INT32_MAX;

// The better of two candidates: the larger value, then the lower column. kNone loses to all.
template <class Value>
struct CandidateOf {
    Value value;
    int32_t column;

    __device__ bool beats(const CandidateOf& other) const {
        if (column == kNone || other.column == kNone) return column != kNone;
        return value > other.value || (value == other.value && column < other.column);
    }
};

using Candidate = CandidateOf<float>;

template <class Value>
__device__ CandidateOf<Value> warp_best(CandidateOf<Value> mine) {
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
        const CandidateOf<Value> other = {__shfl_xor_sync(0xffffffffu, mine.value, stride),
                                          __shfl_xor_sync(0xffffffffu, mine.column, stride)};
        if (other.beats(mine)) mine = other;
    }
    return mine;
}

// Of a block of kCount threads, for all of them; once in a kernel.
template <int kCount, class Value>
__device__ CandidateOf<Value> block_best(CandidateOf<Value> mine) {
    __shared__ CandidateOf<Value> of_warp[kCount / 32];
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return warp_best(lane < kCount / 32 ? of_warp[lane] : CandidateOf<Value>{0, kNone});
}

}  // namespace quadrille::cuda
