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

// Unsigned order of floats; 0: a NaN, which stands for nothing. Both zeros are one.
__device__ __forceinline__ uint32_t order_key(float value) {
    if (isnan(value)) return 0;
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Candidates in the registers of a warp; a NaN is none.
template <int kPer>
struct Held {
    Candidate at[kPer];

    // The k best in order: store(i, candidate) by the lane that holds it, by the first lane where
    // none is left.
    template <class Store>
    __device__ void select(int k, Store store) {
        for (int i = 0; i < k; ++i) {
            uint32_t best = 0;
            Candidate mine = {NAN, kNone};
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                const uint32_t key = order_key(at[j].value);
                if (key > best || (key == best && best != 0 && at[j].column < mine.column)) {
                    best = key;
                    mine = at[j];
                }
            }
            const uint32_t most = __reduce_max_sync(0xffffffffu, best);
            const int32_t column = best == most ? mine.column : kNone;
            const auto first =
                static_cast<int32_t>(__reduce_min_sync(0xffffffffu, static_cast<uint32_t>(column)));
            if (first == kNone ? threadIdx.x % 32 == 0 : column == first) store(i, mine);
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                if (at[j].column == first) at[j].value = NAN;
            }
        }
    }
};

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

// The best of a block of kCount threads, told to all of them; once in a kernel.
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
