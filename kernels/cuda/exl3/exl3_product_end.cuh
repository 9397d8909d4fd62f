// SPDX-License-Identifier: Apache-2.0
// The end of an EXL3 product: the thread block that completes 128 columns adds the units' sums in
// order, transforms and scales the outputs of every segment, and adds the segments as a tree.
#pragma once

#include "kernels/cuda/exl3/exl3_product.cuh"

namespace quadrille::cuda {

// True for all threads of the block that completes the column block.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ bool ProductKernel<kBits, kMul1, kGroups, kHalves>::is_last() {
    int32_t blocks = args_.ranks * kColumnParts;
    if constexpr (kGroups <= kWaitsGroups) {
        if (args_.waits) {
            __syncthreads();
            return rank() == args_.ranks - 1 && half() == kColumnParts - 1;
        }
    }
    if (experts() && blocks > 1) {
        const int32_t block_units = args_.teams * args_.team_units;
        blocks = (units_of(args_.mode, *w_) + block_units - 1) / block_units;
    }
    if (blocks <= 1) {
        __syncthreads();
        return rank() == 0;
    }
    if (rank() >= blocks) return false;
    __shared__ int32_t kept;
    int32_t arrived = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t* counter = args_.counters + place();
        // Releases the whole block's sums, which the barrier has ordered before.
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                     : "=r"(arrived)
                     : "l"(counter)
                     : "memory");
        if (arrived == blocks - 1) *counter = 0;
        kept = arrived;
    }
    __syncthreads();
    return kept == blocks - 1;
}

// v += one segment's units in order: leaves into groups, groups into the segment. load(part, at)
// reads kWide numbers of the unit at `at`; all of a batch are under way together: their latency is
// what this costs. wait: until none is missing.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
template <int kBatch, int kWide, class Load>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::add_units(float (&v)[kWide],
                                                                         const float* from,
                                                                         int32_t units, bool wait,
                                                                         Load&& load) const {
    static_assert(kBatch % kGroupLeaves == 0);
#pragma unroll 1
    for (; units > 0; units -= kBatch, from += kBatch * kCell) {
        float part[kBatch][kWide];
        int late = -1;
        do {
            // One of those that were missing; all of them over and over would be in the way of
            // the thread blocks that they come from. (In halves they come together.)
            while (!kHalves && late >= 0 && __float_as_uint(load_sum(from + late)) == kMissing) {
            }
            late = -1;
#pragma unroll
            for (int u = 0; u < kBatch; ++u) {
                if (u < units) load(part[u], from + u * kCell);
            }
#pragma unroll
            for (int u = 0; u < kBatch; ++u) {
#pragma unroll
                for (int i = 0; i < kWide; ++i) {
                    const bool missing = __float_as_uint(part[u][i]) == kMissing;
                    if (wait && u < units && missing) late = u * kCell + i * exl3::kBlock;
                }
            }
        } while (late >= 0);
        float group[kWide] = {};
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
            if (u >= units) continue;
            const bool ends =
                args_.mode == ProductMode::group || (u + 1) % kGroupLeaves == 0 || u + 1 == units;
#pragma unroll
            for (int i = 0; i < kWide; ++i) {
                group[i] += part[u][i];
                if (ends) {
                    v[i] += group[i];
                    group[i] = 0.0f;
                }
            }
        }
    }
}

// A quarter of the sums of kWide rows, as far as there are so many, into shared memory (segment,
// row, column): few rows, so that more warps wait for memory at the same time.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
template <int kBatch, int kWide>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::gather(int row, int quarter) const {
    const int column = 32 * quarter + lane();
    const float* from = cell(0) + row * exl3::kBlock + column;
    float* to = reinterpret_cast<float*>(shared_) + row * exl3::kBlock + column;
#pragma unroll 1
    for (int32_t s = 0, begin = 0; s < w_->segments; ++s) {
        const int32_t end = segment_end(*w_, s);
        const int32_t units = units_of(args_.mode, end - begin);
        begin = end;
        float v[kWide] = {};
        add_units<kBatch>(v, from, units, args_.waits, [&](float(&part)[kWide], const float* at) {
#pragma unroll
            for (int i = 0; i < kWide; ++i) {
                part[i] = row + i < rows_ ? load_sum(at + i * exl3::kBlock) : 0.0f;
            }
        });
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
            if (row + i < rows_) to[(s * kRows + i) * exl3::kBlock] = v[i];
        }
        from += int64_t{units} * kCell;
    }
}

template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::store_row(int row, int32_t segment,
                                                                         int32_t n,
                                                                         const float (&v)[4],
                                                                         bool bias) const {
    const int position = first_ + row;
    const int64_t target = args_.order == nullptr ? position : args_.order[position];
    float* out = args_.out.data + member() * args_.out.member_stride +
                 target * args_.out.row_stride + segment * args_.out.segment_stride + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (n + i < w_->n) out[i] = bias ? v[i] + w_->bias[n + i] : v[i];
    }
}

// The output transform of a row, and the tree over its segments.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::finish_row(
    int row, const __half2 (&scales)[2]) const {
    const int32_t n = column_block_ * exl3::kBlock + 4 * lane();
    const float svh[4] = {__low2float(scales[0]), __high2float(scales[0]), __low2float(scales[1]),
                          __high2float(scales[1])};
    const float* from = cell(0) + row * exl3::kBlock + 4 * lane();
    // (s0 + s1) + (s2 + s3): the first of a pair is kept, the second added to it.
    float tree[2][4] = {};
#pragma unroll 1
    for (int32_t s = 0, begin = 0; s < w_->segments; ++s) {
        float v[4] = {};
        if constexpr (kGroups <= 2) {
            const float4 in = *reinterpret_cast<const float4*>(
                shared_ + ((s * kRows + row) * exl3::kBlock + 4 * lane()) * 4);
            v[0] = in.x;
            v[1] = in.y;
            v[2] = in.z;
            v[3] = in.w;
        } else {
            const int32_t end = segment_end(*w_, s);
            const int32_t units = units_of(args_.mode, end - begin);
            begin = end;
            add_units<8>(v, from, units, false, [](float(&part)[4], const float* at) {
                const float4 in = __ldcg(reinterpret_cast<const float4*>(at));
                part[0] = in.x;
                part[1] = in.y;
                part[2] = in.z;
                part[3] = in.w;
            });
            from += int64_t{units} * kCell;
        }
        hadamard128(v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = __fmul_rn(v[i], svh[i]);
            if (s < 2) {
                tree[0][i] = s == 0 ? v[i] : tree[0][i] + v[i];
            } else {
                tree[1][i] = s == 2 ? v[i] : tree[1][i] + v[i];
            }
        }
        if (args_.out.by_segment) store_row(row, s, n, v, false);
    }
    if (args_.out.by_segment) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (w_->segments == 4) tree[0][i] += tree[1][i];
    }
    store_row(row, 0, n, tree[0], w_->bias != nullptr);
}

// All sums have been read: what the next product that waits wants to find.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::forget() const {
    const float missing = __uint_as_float(kMissing);
    // From the last warp on: the first ones finish rows.
#pragma unroll 1
    for (int task = warps() - 1 - static_cast<int>(threadIdx.x) / 32; task < args_.units * rows_;
         task += warps()) {
        float* to = cell(task / rows_) + task % rows_ * exl3::kBlock + 4 * lane();
        __stcg(reinterpret_cast<float4*>(to), make_float4(missing, missing, missing, missing));
    }
}

template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::finish() {
    const int first = static_cast<int>(threadIdx.x) / 32;
    // Under way while the sums are.
    const auto* svh = reinterpret_cast<const __half*>(w_->svh) + column_block_ * exl3::kBlock;
    const __half2 scales[2] = {__halves2half2(svh[4 * lane()], svh[4 * lane() + 1]),
                               __halves2half2(svh[4 * lane() + 2], svh[4 * lane() + 3])};
    if constexpr (kGroups <= 2) {
        // Many units of a few rows: a warp for each quarter of a row.
        if (kHalves || args_.units <= 8 || 4 * rows_ > warps()) {
#pragma unroll 1
            for (int task = first; task < (rows_ + 3) / 4 * 4; task += warps()) {
                gather<8, 4>(task / 4 * 4, task % 4);
            }
        } else {
#pragma unroll 1
            for (int task = first; task < 4 * rows_; task += warps()) {
                gather<32, 1>(task / 4, task % 4);
            }
        }
        __syncthreads();
    }
    if constexpr (kGroups <= kWaitsGroups) {
        if (args_.waits) forget();
    }
#pragma unroll 1
    for (int row = first; row < rows_; row += warps()) finish_row(row, scales);
}

}  // namespace quadrille::cuda
