// SPDX-License-Identifier: Apache-2.0
// The EXL3 product of up to 64 rows: weights are decoded in registers as the A operand of the
// tensor cores (16 output columns), rows are the B operand (8 rows), so a decoded tile serves all
// rows of the thread block and few rows waste nothing.
//
// A thread block owns 128 columns and a run of units of the inputs (exl3_product.h); each of its
// teams of 8 warps a part of the run. A warp streams one tile column through a private ring in
// shared memory (no barrier), the team shares the rotated inputs. The units' sums go to memory; the
// last thread block of a column block adds them in order and applies the output transform
// (exl3_product_end.cuh), so one launch does the whole product. Few leaves: teams of 4 warps share
// a group of them in halves of the 128 columns (Exl3Tiling::halves), so that fewer sums go to
// memory.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3/exl3_decode.cuh"
#include "kernels/cuda/exl3/exl3_hadamard.cuh"
#include "kernels/cuda/exl3/exl3_product.h"
#include "kernels/cuda/mma.cuh"

#include <cuda_fp16.h>

#include <cstdint>

namespace quadrille::cuda {

// The end of the segment that holds a block.
__device__ __forceinline__ int32_t end_after(const Matrix& w, int32_t block) {
    int32_t s = 0;
    while (s + 1 < w.segments && segment_end(w, s) <= block) ++s;
    return segment_end(w, s);
}
// Not inlined: rare, and long.
__device__ __noinline__ static BlockRun blocks_of_units(const Matrix& w, int32_t span, int32_t unit,
                                                        int32_t count) {
    return run_of_units(w, span, unit, count);
}

// Sums of units, each number by itself past the cache of a multiprocessor: of a product that waits
// they tell of their own arrival.
__device__ __forceinline__ void store_sum(float* to, float sum) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(sum) : "memory");
}
__device__ __forceinline__ void store_sums(float* to, float4 sum) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(sum.x),
                 "f"(sum.y), "f"(sum.z), "f"(sum.w)
                 : "memory");
}
__device__ __forceinline__ float load_sum(const float* from) {
    float sum;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(sum) : "l"(from) : "memory");
    return sum;
}

// The value, unknown to the compiler: it is held in a register instead of being worked out again in
// every step, and what follows from it is worked out where it is used, not ahead.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
// An address in shared memory.
__device__ __forceinline__ const unsigned char* opaque(const unsigned char* shared) {
    const int address = opaque(static_cast<int>(shared_address(shared)));
    return static_cast<const unsigned char*>(
        __cvta_shared_to_generic(static_cast<uint32_t>(address)));
}

template <int kBits, bool kMul1, int kGroups, bool kHalves>
class ProductKernel {
  public:
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kStageBytes = 8 * kTileBytes;        // of a warp: 128 inputs
    static constexpr int kInputBytes = 8 * kGroups * 32 * 8;  // of 128 inputs
    static constexpr int kTeamWarps = team_warps(kHalves);
    static constexpr int kTeamThreads = 32 * kTeamWarps;
    static constexpr int kColumnParts = kHalves ? 2 : 1;
    static constexpr int kStages = kHalves ? 1 : ring_stages(kBits, kGroups);
    static constexpr int kInputBlocks = kHalves ? 1 : input_blocks(kGroups);
    static constexpr int kRows = 8 * kGroups;
    static constexpr int kCell = kRows * exl3::kBlock;  // floats of a unit's sums
    using Sums = float[kGroups][4];

    __device__ ProductKernel(const Exl3Product& args, unsigned char* shared)
        : args_(args), shared_(shared), place_(lane()) {}

    __device__ void run();

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32 % kTeamWarps; }
    static __device__ int team() { return static_cast<int>(threadIdx.x) / kTeamThreads; }
    static __device__ int warps() { return static_cast<int>(blockDim.x) / 32; }
    __device__ void team_barrier() const {
        asm volatile("bar.sync %0, %1;" ::"r"(team() + 1), "n"(kTeamThreads) : "memory");
    }
    // z of the grid: the ranks of the first member, then those of the second.
    __device__ int32_t member() const {
        return static_cast<int32_t>(blockIdx.z) >= args_.ranks ? 1 : 0;
    }
    __device__ int32_t rank() const {
        return static_cast<int32_t>(blockIdx.z) - member() * args_.ranks;
    }

    __device__ bool experts() const { return !kHalves && args_.table != nullptr; }
    static __device__ int half() { return static_cast<int>(blockIdx.x) % kColumnParts; }
    __device__ bool locate();
    __device__ void locate_units();
    __device__ void prefetch_scales() const;
    __device__ void fill(int step, uint32_t stage);
    __device__ void rotate_inputs();
    __device__ void copy_inputs(int first, int last);
    __device__ void multiply(Sums& acc, const unsigned char* stage,
                             const unsigned char* rows) const;
    __device__ void take_inputs();
    __device__ void sum();
    __device__ void sum_group();
    __device__ void write_unit(float* to, Sums& sums, bool more) const;
    __device__ bool is_last();
    // The place of this thread block's 128 columns and rows.
    __device__ int64_t place() const {
        const int64_t tile = int64_t{member()} * gridDim.y + blockIdx.y;
        return tile * (gridDim.x / kColumnParts) + blockIdx.x / kColumnParts;
    }
    __device__ float* cell(int32_t unit) const {
        return args_.partial + (place() * args_.units + unit) * kCell;
    }
    template <int kBatch, int kWide, class Load>
    __device__ void add_units(float (&v)[kWide], const float* from, int32_t units, bool wait,
                              Load&& load) const;
    __device__ void forget() const;
    template <int kBatch, int kWide>
    __device__ void gather(int row, int quarter) const;
    __device__ void finish_row(int row, const __half2 (&scales)[2]) const;
    __device__ void store_row(int row, int32_t segment, int32_t n, const float (&v)[4],
                              bool bias) const;
    __device__ void finish();

    const Exl3Product& args_;
    unsigned char* shared_;
    LanePlace<kBits> place_;  // in the warp's ring, words of shared memory
    uint32_t ring_ = 0;       // shared address of what the lane copies of the ring
    int32_t inputs_ = 0;      // the team's inputs
    const Matrix* w_ = nullptr;
    const unsigned char* trellis_ = nullptr;  // what the lane copies next
    uint32_t row_bytes_ = 0;                  // from one input tile's row to the next
    uint32_t multiplier_ = 0;
    uint32_t addend_ = 0;
    int32_t unit_ = 0;   // the team's first
    int32_t block_ = 0;  // its first 128 inputs, and how many
    int32_t steps_ = 0;
    int32_t leaves_ = 0;  // halves: of the group
    int32_t first_ = 0;   // row positions [first_, first_ + rows_)
    int32_t rows_ = 0;
    int32_t groups_ = 0;  // 8-row groups in use
    int32_t column_block_ = 0;
};

// The matrix, the rows, and the team's part of the inputs.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ bool ProductKernel<kBits, kMul1, kGroups, kHalves>::locate() {
    const int32_t y = static_cast<int32_t>(blockIdx.y);
    w_ = &args_.matrix;
    first_ = y * kRows;
    rows_ = min(kRows, args_.m - first_);
    if (experts()) {
        // Not by their count: the matrix follows one read.
        const int32_t* tile = &args_.tiles[y].expert;
        const int32_t expert = __ldcg(tile);
        if (expert < 0) return false;
        first_ = __ldcg(tile + 1);
        rows_ = __ldcg(tile + 2);
        const Mlp* mlp = args_.table + expert;
        const int32_t which = args_.member + member();
        const Matrix* source = which == 0 ? &mlp->gate : which == 1 ? &mlp->up : &mlp->down;
        // Its fields are read again and again: from shared memory at the cost of one read.
        __shared__ __align__(16) unsigned char kept[sizeof(Matrix)];
        static_assert(sizeof(Matrix) % 4 == 0 && sizeof(Matrix) / 4 <= 128);
        static_assert(sizeof(Matrix) + 16 <= kProductStatic);
        if (threadIdx.x < sizeof(Matrix) / 4) {
            reinterpret_cast<uint32_t*>(kept)[threadIdx.x] =
                reinterpret_cast<const uint32_t*>(source)[threadIdx.x];
        }
        __syncthreads();
        w_ = reinterpret_cast<const Matrix*>(kept);
    }
    if (w_->trellis == nullptr || w_->bits != kBits || (w_->codebook == Codebook::mul1) != kMul1) {
        return false;
    }
    column_block_ = args_.first_block + static_cast<int32_t>(blockIdx.x) / kColumnParts;
    if (column_block_ * exl3::kBlock >= static_cast<int32_t>(w_->n)) return false;
    groups_ = (rows_ + 7) / 8;
    locate_units();
    const bool mcg = w_->codebook == Codebook::mcg;
    multiplier_ = static_cast<uint32_t>(
        opaque(static_cast<int>(mcg ? exl3::kMcgMultiplier : exl3::k3instMultiplier)));
    addend_ = static_cast<uint32_t>(opaque(mcg ? 0 : static_cast<int>(exl3::k3instAddend)));
    row_bytes_ = static_cast<uint32_t>(w_->n_padded) / exl3::kTile * kTileBytes;
    // A row of a tile column is copied by four lanes.
    trellis_ = reinterpret_cast<const unsigned char*>(w_->trellis) +
               (int64_t{block_} * 8 + lane() / 4) * row_bytes_ +
               (column_block_ * 8 + half() * kTeamWarps + warp()) * kTileBytes + lane() % 4 * 16;
    const int ring_bytes = args_.stages * kStageBytes;
    const int ring = (team() * kTeamWarps + warp()) * ring_bytes;
#pragma unroll
    for (int i = 0; i < LanePlace<kBits>::kReads; ++i)
        place_.index[i] = opaque(place_.index[i] + ring / 4);
    ring_ = shared_address(shared_) +
            static_cast<uint32_t>(ring + lane() / 4 * kTileBytes + lane() % 4 * 16);
    inputs_ = args_.teams * kTeamWarps * ring_bytes + team() * args_.input_blocks * kInputBytes;
    return true;
}

// The team's units; in halves its leaf of the group.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::locate_units() {
    const int32_t units = kHalves ? 1 : args_.team_units;
    unit_ = kHalves ? rank() : (rank() * args_.teams + team()) * units;
    if (w_->segments == 1) {
        const int32_t span = unit_span(args_.mode);
        block_ = unit_ * span;
        steps_ = min(units * span, static_cast<int32_t>(w_->k_padded) / exl3::kBlock - block_);
    } else {
        const BlockRun run = blocks_of_units(*w_, unit_span(args_.mode), unit_, units);
        block_ = run.first;
        steps_ = run.blocks;
    }
    if constexpr (kHalves) {
        leaves_ = steps_;
        block_ += team();
        steps_ = team() < leaves_ ? 1 : 0;
    }
}

// Into the cache: the input scales of the team and the output scales of the block.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::prefetch_scales() const {
    const int thread = static_cast<int>(threadIdx.x) % kTeamThreads;  // 64 scales each
    const F16* from = nullptr;
    if (thread < 2) {
        from = w_->svh + int64_t{column_block_} * exl3::kBlock + thread * 64;
    } else if (thread < 2 + 2 * steps_ && args_.rotated == nullptr) {
        from = w_->suh + int64_t{block_} * exl3::kBlock + (thread - 2) * 64;
    }
    if (from != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Starts the copies of a step's trellis (128 inputs) into the ring, to a stage's bytes of it.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::fill(int step, uint32_t stage) {
    if (step < steps_) {
#pragma unroll
        for (int i = 0; i < kTileBytes; i += 64) {
            if (i + 64 <= kTileBytes || lane() % 4 * 16 < kTileBytes - i) {
                copy_async_16(ring_ + stage + i, trellis_ + i);
            }
        }
        trellis_ += 8 * row_bytes_;
    }
    copy_async_commit();
}

// acc += one leaf.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::multiply(
    Sums& acc, const unsigned char* stage, const unsigned char* rows) const {
#pragma unroll
    for (int t = 0; t < 8; ++t) {
        const LaneWindow<kBits> window =
            place_.load(reinterpret_cast<const uint32_t*>(stage + t * kTileBytes));
        uint32_t a[4];
        decode_tile<kBits, kMul1>(a, window, multiplier_, addend_);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g >= 2 && g >= groups_) break;
            const uint2 b = *reinterpret_cast<const uint2*>(rows + (t * kGroups + g) * 256);
            mma_f16(acc[g], a, b.x, b.y);
        }
    }
}

// The first of the team's inputs.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::take_inputs() {
    if (args_.rotated == nullptr) {
        rotate_inputs();
        wait_for_earlier_kernels();
    } else {
        copy_inputs(0, kInputBlocks);
    }
    // Not before: with two later kernels waiting on the device, the thread blocks of each gather on
    // some of the multiprocessors.
    let_next_kernel_start();
    team_barrier();
}

// All units of the team.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::sum() {
#pragma unroll 1
    for (int step = 0; step < kStages; ++step) fill(step, step * kStageBytes);
    prefetch_scales();
    constexpr int kHalf = kInputBlocks / 2;
    const bool more_inputs = steps_ > kInputBlocks;
    const unsigned char* shared = opaque(shared_);
    const unsigned char* rows = shared + inputs_ + lane() * 8;
    float* to = cell(unit_) + lane() % 4 * 2 * exl3::kBlock + warp() * exl3::kTile + lane() / 4;
    uint32_t stage = 0;
    int left = 0;       // leaves of the unit
    bool more = false;  // of its groups have been written
    take_inputs();
#pragma unroll 1
    for (int step = 0; step < steps_;) {
        if (left == 0) {
            const int block = block_ + step;
            left = min(unit_span(args_.mode), end_after(*w_, block) - block);
            more = false;
        }
        const int end = step + min(left, kGroupLeaves);
        left -= end - step;
        Sums group = {};
#pragma unroll 1
        for (; step < end; ++step) {
            if (more_inputs && step > 0 && step % kHalf == 0) {
                // The older half of the inputs is done with, the newer one is there.
                team_barrier();
                copy_inputs(step + kInputBlocks - kHalf, step + kInputBlocks);
            }
            copy_async_wait<kStages - 1>();
            __syncwarp();
            Sums acc = {};
            multiply(acc, shared + stage,
                     rows + static_cast<uint32_t>(step) % kInputBlocks * kInputBytes);
            __syncwarp();  // every lane has read the stage that is filled next
            fill(step + kStages, stage);
            stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
#pragma unroll
                for (int i = 0; i < 4; ++i) group[g][i] += acc[g][i];
            }
        }
        write_unit(to, group, more);
        more = true;
        if (left == 0) to += kCell;
    }
}

// A unit's sum to memory, or a later group of its segment added to it: by the same threads.
template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::write_unit(float* to, Sums& sums,
                                                                          bool more) const {
    const auto each = [&](auto&& work) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g > 0 && g >= groups_) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (8 * g + lane() % 4 * 2 + i % 2 < rows_) {
                    work(to + (8 * g + i % 2) * exl3::kBlock + i / 2 * 8, sums[g][i]);
                }
            }
        }
    };
    if (more) each([](const float* at, float& sum) { sum += __ldcg(at); });
    each([](float* at, float sum) { store_sum(at, sum); });
}

template <int kBits, bool kMul1, int kGroups, bool kHalves>
__device__ void ProductKernel<kBits, kMul1, kGroups, kHalves>::run() {
    if (experts() && !args_.tiles_early) wait_for_earlier_kernels();  // tiles are made by one
    if (!locate()) return wait_for_earlier_kernels();  // no later kernel overtakes an earlier one
    if constexpr (kHalves) {
        sum_group();
    } else {
        sum();
    }
    wait_for_earlier_kernels();  // also where there was nothing to sum
    let_next_kernel_start();
    if (is_last()) finish();
}

// kTeams: the most teams, 4 in halves. One team leaves registers for a third thread block.
template <int kBits, bool kMul1, int kGroups, int kTeams>
__global__ void __launch_bounds__(32 * kTeams * team_warps(kTeams == 4), kGroups >= 4  ? 1
                                                                         : kTeams == 1 ? 3
                                                                                       : 2)
    exl3_product_kernel(const __grid_constant__ Exl3Product args) {
    extern __shared__ __align__(128) unsigned char shared[];
    ProductKernel<kBits, kMul1, kGroups, kTeams == 4>(args, shared).run();
}

}  // namespace quadrille::cuda

#include "kernels/cuda/exl3/exl3_product_end.cuh"
#include "kernels/cuda/exl3/exl3_product_halves.cuh"
#include "kernels/cuda/exl3/exl3_product_inputs.cuh"
