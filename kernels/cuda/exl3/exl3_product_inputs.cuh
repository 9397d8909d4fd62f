// SPDX-License-Identifier: Apache-2.0
// The inputs of an EXL3 product in shared memory, in the order of the B operand (exl3_rotate.h):
// rotated by the thread block itself, or copied from where a kernel before it has left them.
#pragma once

#include "kernels/cuda/exl3/exl3_product.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace quadrille::cuda {

inline constexpr int kRowsTogether = 4;  // whose loads are under way together

// Inputs 4l .. 4l+3 of `count` rows, or of the first kRows of them; row(t): where those of one lie.
// `left` inputs exist from there on, zeros stay behind them.
template <int kRows, class Row>
__device__ __forceinline__ void load_rows(float (&v)[kRows][4], int count, int32_t left,
                                          Row&& row) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
        if (t >= count || left < 4) continue;
        const float4 in = __ldcg(reinterpret_cast<const float4*>(row(t)));
        v[t][0] = in.x;
        v[t][1] = in.y;
        v[t][2] = in.z;
        v[t][3] = in.w;
    }
    if (left >= 4) return;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            if (t < count && i < left) v[t][i] = row(t)[i];
        }
    }
}

// Inputs of experts, from the channels of a lane on; as Exl3Product says.
struct ExpertInputs {
    const float* x;
    const float* up;
    int64_t stride;
    float limit;
    int32_t left;  // as load_rows
};

// Rows first, first + stride .. of one block; source: which row of the inputs the lane's row is.
// to: where the first one's results go, next: bytes from an input tile's to the next one's. No more
// rows together: for their registers the kernel would move others to memory.
__device__ __forceinline__ void rotate_expert_rows(ExpertInputs from, const InputRotation& rotation,
                                                   int32_t source, int first, int stride, int rows,
                                                   uint2 scales, unsigned char* to, uint32_t next) {
    constexpr int kTogether = 2;
#pragma unroll 1
    for (int row = first; row < rows; row += kTogether * stride) {
        int64_t at[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            at[t] = __shfl_sync(0xffffffffu, source, row + t * stride) * from.stride;
        }
        const int count = row + stride < rows ? 2 : 1;
        float v[kTogether][4] = {};
        load_rows(v, count, from.left, [&](int t) { return from.x + at[t]; });
        if (from.up != nullptr) {
            float up[kTogether][4] = {};
            load_rows(up, count, from.left, [&](int t) { return from.up + at[t]; });
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                if (t >= count) break;
#pragma unroll
                for (int i = 0; i < 4; ++i) v[t][i] = swiglu(v[t][i], up[t][i], from.limit);
            }
        }
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            if (t >= count) break;
            uint32_t pair[2];
            rotation(pair, v[t], scales);
            *reinterpret_cast<uint32_t*>(to) = pair[0];
            *reinterpret_cast<uint32_t*>(to + next) = pair[1];
            to += stride * 32;
        }
    }
}

// All of the team's inputs (no more than kInputBlocks): every row scaled, rotated and rounded to
// fp16. A warp takes rows of one block; few blocks share the warps. Nothing is written for rows
// that there are not: what the tensor core makes of them stays in columns of their own.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::rotate_inputs() {
    static_assert(kInputBlocks <= kTeamWarps);
    constexpr int kShift = kHalves ? 2 : 3;
    static_assert(1 << kShift == kTeamWarps);
    const int shift = steps_ <= 1 ? 0 : steps_ <= 2 ? 1 : steps_ <= 4 ? 2 : 3;
    const int block = warp() & ((1 << shift) - 1);
    const int stride = kTeamWarps >> shift;
    const int channel = (block_ + block) * exl3::kBlock + 4 * lane();
    uint2 scales = {};
    if (block < steps_) scales = *reinterpret_cast<const uint2*>(w_->suh + channel);
    // A lane keeps the source of its own row.
    int32_t source = first_ + lane();
    bool early = false;
    if constexpr (!kHalves && kGroups <= kInsideGroups) {
        static_assert(8 * kInsideGroups <= 32);
        if (args_.input_order != nullptr && lane() < rows_) {
            source = __ldcg(args_.input_order + source) / args_.slots;
        }
        early = args_.tiles_early && args_.input_order != nullptr;
    }
    const InputRotation rotation(lane());
    if (!early) wait_for_earlier_kernels();  // the scales are under way
    if (block >= steps_) return;
    const int32_t left = static_cast<int32_t>(w_->k) - channel;
    const int first = warp() >> shift;
    unsigned char* to = shared_ + inputs_ + block * kInputBytes +
                        InputRotation::tile(lane()) * kGroups * 256 +
                        InputRotation::word(lane()) * 4 + first * 32;
    if constexpr (!kHalves && kGroups <= kInsideGroups) {
        if (args_.table != nullptr) {
            const ExpertInputs from = {args_.x + channel,
                                       args_.up == nullptr ? nullptr : args_.up + channel,
                                       args_.x_stride, args_.limit, left};
            return rotate_expert_rows(from, rotation, source, first, stride, rows_, scales, to,
                                      kGroups * 256);
        }
    }
    const int64_t step = stride * args_.x_stride;
    const float* x = args_.x + (first_ + first) * args_.x_stride + channel;
#pragma unroll 1
    for (int row = first; row < rows_; row += kRowsTogether * stride) {
        float v[kRowsTogether][4] = {};
        load_rows(v, (rows_ - row + stride - 1) >> (kShift - shift), left,
                  [&](int t) { return x + t * step; });
#pragma unroll
        for (int t = 0; t < kRowsTogether; ++t) {
            if (row + t * stride >= rows_) break;
            uint32_t pair[2];
            rotation(pair, v[t], scales);
            *reinterpret_cast<uint32_t*>(to + t * stride * 32) = pair[0];
            *reinterpret_cast<uint32_t*>(to + t * stride * 32 + kGroups * 256) = pair[1];
        }
        x += kRowsTogether * step;
        to += kRowsTogether * stride * 32;
    }
}

// The same out of memory, where a kernel before this one has rotated them.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::copy_inputs(int first, int last) {
    constexpr int kTogether = kGroups < 4 ? kGroups : 4;
    wait_for_earlier_kernels();
    const int64_t tiles = args_.rotated_tiles;
    // 16 bytes a thread: 128 of them are one row group of one block.
    const int of_team = opaque(static_cast<int>(threadIdx.x)) % kTeamThreads;
    const int thread = of_team % 128;
    const int half = of_team / 128;
    const uint4* from =
        reinterpret_cast<const uint4*>(args_.rotated + member() * args_.rotated_stride +
                                       (first_ / 8 * tiles + int64_t{block_} * 8) * 32) +
        thread;
#pragma unroll 1
    for (int item = half; item < (min(last, steps_) - first) * (kGroups / kTogether);
         item += kTeamThreads / 128) {
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
