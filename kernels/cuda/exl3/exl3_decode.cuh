// SPDX-License-Identifier: Apache-2.0
// Decoding of EXL3 tiles in registers: a lane of a warp turns its eight symbols of a tile into A
// fragments of mma.m16n8k16 (16 output columns). The bit layout is drawn in kernels/exl3.h; here it
// is only sliced: lane l owns positions 8l .. 8l+7, whose states are 16-bit windows `bits` apart
// that end at a byte boundary of the stream.
//
// Per weight: a permute (the window), a multiply and a three-input logic op (mcg, 3inst); shifts
// are written as multiplications where the window lies in one word, since the logic pipe (64 lanes
// a clock) is what limits the decode rate and the integer multiplier runs beside it.
#pragma once

#include "kernels/exl3.h"

#include <cuda_fp16.h>

#include <cstdint>

namespace quadrille::cuda {

// The last `16 + 7 * kBits` bits of the stream up to a lane's last symbol, least significant last.
template <int kBits>
struct LaneWindow {
    static constexpr int kWords = (16 + 7 * kBits + 31) / 32;
    uint32_t word[kWords];
};

// The place of a lane's window in its tile: the same for every tile.
template <int kBits>
struct LanePlace {
    // Bits of the window plus the largest shift decide how many words are read.
    static constexpr int kShiftMax = kBits % 4 == 0 ? 0 : (kBits % 2 == 0 ? 16 : 24);
    static constexpr int kReads = (16 + 7 * kBits + kShiftMax + 31) / 32;
    int index[kReads];  // words, the last one first
    int shift;

    __device__ explicit LanePlace(int lane) {
        constexpr int kCount = exl3::tile_words(kBits);
        const int last = 8 * lane * kBits + 8 * kBits - 1;
#pragma unroll
        for (int i = 0; i < kReads; ++i) index[i] = (last / 32 - i + kCount) % kCount;
        shift = 31 - last % 32;
    }

    // tile: the tile's words, in shared or global memory.
    __device__ LaneWindow<kBits> load(const uint32_t* tile) const {
        uint32_t raw[kReads];
#pragma unroll
        for (int i = 0; i < kReads; ++i) raw[i] = tile[index[i]];
        return align(raw);
    }

    __device__ LaneWindow<kBits> align(const uint32_t (&raw)[kReads]) const {
        constexpr int kWords = LaneWindow<kBits>::kWords;
        LaneWindow<kBits> window;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if constexpr (kShiftMax == 0) {
                window.word[i] = raw[i];
            } else {
                const uint32_t high = i + 1 < kReads ? raw[i + 1 < kReads ? i + 1 : i] : 0u;
                window.word[i] = __funnelshift_r(raw[i], high, static_cast<uint32_t>(shift));
            }
        }
        return window;
    }
};

// Which 32-bit slice of the window every state is cut from: a state lies at byte 0, 1 or 2 of its
// slice. Built from the last offset down, so that states eight bits apart share a slice.
template <int kBits>
struct WindowPlan {
    int slices = 0;
    int start[8] = {};   // first window bit of a slice; negative: word 0 shifted left
    int lowest[8] = {};  // lowest offset of a state cut from it
    int slice[8] = {};   // of state j
    int byte[8] = {};

    constexpr WindowPlan() {
        for (int j = 0; j < 8; ++j) {
            const int offset = kBits * (7 - j);
            int found = -1;
            for (int s = 0; s < slices && found < 0; ++s) {
                const int distance = offset - start[s];
                if (distance == 0 || distance == 8 || distance == 16) found = s;
            }
            if (found < 0) {
                found = slices++;
                const bool in_place = offset % 8 == 0 && offset % 32 <= 16;
                start[found] = in_place ? offset / 32 * 32 : offset - 16;
            }
            lowest[found] = offset;
            slice[j] = found;
            byte[j] = (offset - start[found]) / 8;
        }
    }
};

template <int kBits, int kSlice>
__device__ __forceinline__ uint32_t window_slice(const LaneWindow<kBits>& window) {
    constexpr WindowPlan<kBits> kPlan;
    constexpr int kStart = kPlan.start[kSlice];
    constexpr int kTop = (kStart + 31) / 32;  // word of the slice's last bit
    if constexpr (kStart % 32 == 0) {
        return window.word[kStart / 32];
    } else if constexpr (kPlan.lowest[kSlice] >= 32 * kTop) {
        return window.word[kTop] * (1u << (32 * kTop - kStart));
    } else {
        return __funnelshift_r(window.word[kTop - 1], window.word[kTop], kStart % 32);
    }
}

// State j of a lane, zero-extended.
template <int kBits, int kState>
__device__ __forceinline__ uint32_t lane_state(const LaneWindow<kBits>& window) {
    constexpr WindowPlan<kBits> kPlan;
    constexpr uint32_t kSelector[3] = {0x4410u, 0x4421u, 0x4432u};
    return __byte_perm(window_slice<kBits, kPlan.slice[kState]>(window), 0u,
                       kSelector[kPlan.byte[kState]]);
}

// mcg and 3inst: the two fp16 halves of a state's product (exl3::codebook_pair), the and/xor as one
// three-input operation.
__device__ __forceinline__ __half2 codebook_halves(uint32_t state, uint32_t multiplier,
                                                   uint32_t addend) {
    const uint32_t x = state * multiplier + addend;
    uint32_t pair;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(pair) : "r"(x), "r"(0x8fff8fffu), "r"(0x3b603b60u));
    return *reinterpret_cast<const __half2*>(&pair);
}

// Two states -> two fp16 weights, the first in the low half. The weight is the rounded fp16 sum of
// the halves, as everywhere. (The halves as two k-slots of the tensor core would save the addition:
// 8 % in the decode rate on an H200, lost again to twice the MMAs, whose chain is what few thread
// blocks wait for.)
__device__ __forceinline__ uint32_t decode_sums(uint32_t first, uint32_t second,
                                                uint32_t multiplier, uint32_t addend) {
    const __half2 a = codebook_halves(first, multiplier, addend);
    const __half2 b = codebook_halves(second, multiplier, addend);
    const __half2 sum_a = __hadd2(__low2half2(a), __high2half2(a));
    const __half2 sum_b = __hadd2(__low2half2(b), __high2half2(b));
    return __byte_perm(*reinterpret_cast<const uint32_t*>(&sum_a),
                       *reinterpret_cast<const uint32_t*>(&sum_b), 0x5410u);
}

// mul1: 0x6400 + byte sum is the fp16 number 1024 + sum; one fused multiply-add rounds once.
__device__ __forceinline__ uint32_t decode_mul1(uint32_t first, uint32_t second) {
    const uint32_t a = __dp4a(first * exl3::kMul1Multiplier, 0x01010101u, 0x6400u);
    const uint32_t b = __dp4a(second * exl3::kMul1Multiplier, 0x01010101u, 0x6400u);
    const uint32_t sums = __byte_perm(a, b, 0x5410u);
    uint32_t weights;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(weights)
        : "r"(sums), "r"(0x1EEE1EEEu), "r"(0xC931C931u));
    return weights;
}

template <int kBits, bool kMul1, int kState>
__device__ __forceinline__ uint32_t decode_pair(const LaneWindow<kBits>& window,
                                                uint32_t multiplier, uint32_t addend) {
    const uint32_t first = lane_state<kBits, kState>(window);
    const uint32_t second = lane_state<kBits, kState + 1>(window);
    if constexpr (kMul1) {
        return decode_mul1(first, second);
    } else {
        return decode_sums(first, second, multiplier, addend);
    }
}

// The A fragment of a tile, c = lane / 4 and q = lane % 4: a[0] column c inputs 2q 2q+1, a[1]
// column c + 8, a[2] and a[3] the same with inputs 2q+8 2q+9. mul1 needs no multiplier.
template <int kBits, bool kMul1>
__device__ __forceinline__ void decode_tile(uint32_t (&a)[4], const LaneWindow<kBits>& window,
                                            uint32_t multiplier, uint32_t addend) {
    a[0] = decode_pair<kBits, kMul1, 0>(window, multiplier, addend);
    a[2] = decode_pair<kBits, kMul1, 2>(window, multiplier, addend);
    a[1] = decode_pair<kBits, kMul1, 4>(window, multiplier, addend);
    a[3] = decode_pair<kBits, kMul1, 6>(window, multiplier, addend);
}

}  // namespace quadrille::cuda
