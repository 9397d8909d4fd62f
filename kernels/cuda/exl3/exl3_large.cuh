// SPDX-License-Identifier: Apache-2.0
// The EXL3 product of many rows: as exl3_product.cuh, to the bit, but a thread block owns 256
// columns and up to 128 rows, so that weights are decoded again only every 128 rows. Or up to 16: a
// warp, of 32 columns, has twice as many weights to each of its other instructions as there, and
// inputs that are not rotated again for every 128 columns.
//
// Tiles of 128 rows: a warp decodes a leaf of its columns into registers and holds it there while
// the rows pass by, so no accumulators but those of four row groups are under way, and the sums of
// the groups of leaves stay in registers too. Of the two warps of a scheduler one decodes ahead of
// the barrier between leaves and the other behind it: the tensor cores always have one of them.
// Tiles of 16 rows: a weight is multiplied as soon as it is decoded, and three thread blocks share
// a multiprocessor.
//
// The rotated inputs come through two buffers in shared memory. Sums of segments are kept in shared
// memory, and transformed there; where several thread blocks share the inputs, the sums of groups
// go to memory and exl3_large_end.cu does the rest.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3/exl3_columns.cuh"
#include "kernels/cuda/exl3/exl3_decode.cuh"
#include "kernels/cuda/exl3/exl3_product.h"

namespace quadrille::cuda {

// What all threads of a thread block share. In shared memory and not in registers, of which the
// loop over the leaves has none to spare.
struct LargeBlock {
    Matrix w;
    int32_t first;  // row positions [first, first + rows)
    int32_t rows;
    int32_t block;  // the first 128 inputs, and how many
    int32_t steps;
    int64_t leaf_bytes;    // of trellis, from a leaf to the next
    int64_t groups_bytes;  // of inputs, from a group of rows to the eighth after it
    uint32_t multiplier;
    uint32_t addend;
};

template <int kBits, bool kMul1, int kRowGroups>
class LargeKernel {
  public:
    static constexpr int kRows = 8 * kRowGroups;
    // Row groups whose products a warp adds or leaves out.
    static constexpr int kTogether = kRowGroups < 4 ? kRowGroups : 4;
    static constexpr int kTileWords = exl3::tile_words(kBits);
    static constexpr int kStageWords = 8 * 2 * kTileWords;  // of a warp: 128 inputs, 32 columns
    static constexpr int kStages = large_stages(kBits, kRowGroups);
    static constexpr int kGroupBytes = 8 * 32 * 8;  // inputs of 8 rows: 128 each
    static constexpr int kInputBytes = kRowGroups * kGroupBytes;
    static constexpr int kSumBytes = large_sum_bytes(kRowGroups);
    using Weights = uint32_t[8][2][4];  // input tile, tile column
    using Sums = float[kRowGroups][2][4];

    __device__ LargeKernel(const Exl3Product& args, unsigned char* shared, LargeBlock& b)
        : args_(args), shared_(shared), b_(b) {}

    __device__ void run();

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
    // Which 128 of the columns, and which of the two warps of a scheduler.
    static __device__ int half() { return warp() / 4; }
    __device__ int32_t member() const {
        return static_cast<int32_t>(blockIdx.z) >= args_.ranks ? 1 : 0;
    }
    __device__ int32_t rank() const {
        return static_cast<int32_t>(blockIdx.z) - member() * args_.ranks;
    }
    // Neighbours in time share the weights of one matrix, which are the most of its bytes; of
    // experts, whose rows are, the inputs.
    __device__ int32_t row_tile() const {
        return static_cast<int32_t>(args_.table == nullptr ? blockIdx.x : blockIdx.y);
    }
    __device__ int32_t column_pair() const {
        return static_cast<int32_t>(args_.table == nullptr ? blockIdx.y : blockIdx.x);
    }
    __device__ int64_t tile() const { return int64_t{member()} * gridDim.y + row_tile(); }
    // Block of 128 columns of the launch, of the half.
    __device__ int32_t column() const { return 2 * column_pair() + half(); }
    __device__ int32_t column_block() const { return args_.first_block + column(); }
    __device__ bool works() const {
        return column() < args_.column_blocks && column_block() * exl3::kBlock < b_.w.n;
    }
    static __device__ int ring() {  // bytes of shared memory
        return kSumBytes + 2 * kInputBytes + warp() * kStages * kStageWords * 4;
    }

    class Tiles;

    __device__ bool locate() const;
    __device__ void begin_copies();
    __device__ void fill(int step);
    __device__ void copy_inputs(int step);
    __device__ void begin(int step);
    __device__ void decode(Weights& a, int step);
    __device__ void multiply(Sums& sums, const Weights& a, int step) const;
    __device__ void decode_and_multiply(Sums& sums, int step);
    __device__ void sum(int first, int last, int32_t unit, bool idle);
    __device__ void keep_sums(const Sums& sums, bool more) const;
    __device__ void write_sums(const Sums& sums, int32_t unit) const;
    __device__ void finish_segment(int32_t segment, bool empty) const;

    const Exl3Product& args_;
    unsigned char* shared_;
    LargeBlock& b_;
    // What the lane copies next, of the leaf that is filled next.
    const unsigned char* weights_ = nullptr;
    const unsigned char* inputs_ = nullptr;
};

template <int kBits, bool kMul1, int kRowGroups>
__device__ bool LargeKernel<kBits, kMul1, kRowGroups>::locate() const {
    const int32_t y = row_tile();
    const Matrix* source = &args_.matrix;
    int32_t first = y * kRows;
    int32_t rows = min(kRows, args_.m - first);
    if (args_.table != nullptr) {
        if (y >= *args_.tile_count) return false;
        const RowTile tile = args_.tiles[y];
        first = tile.first;
        rows = tile.rows;
        const Mlp* mlp = args_.table + tile.expert;
        const int32_t which = args_.member + member();
        source = which == 0 ? &mlp->gate : which == 1 ? &mlp->up : &mlp->down;
    }
    static_assert(sizeof(Matrix) % 4 == 0 && sizeof(Matrix) / 4 <= kLargeThreads);
    if (threadIdx.x < sizeof(Matrix) / 4) {
        reinterpret_cast<uint32_t*>(&b_.w)[threadIdx.x] =
            reinterpret_cast<const uint32_t*>(source)[threadIdx.x];
    }
    __syncthreads();
    const Matrix& w = b_.w;
    if (w.trellis == nullptr || w.bits != kBits || (w.codebook == Codebook::mul1) != kMul1 ||
        (args_.first_block + 2 * column_pair()) * exl3::kBlock >= w.n) {
        return false;
    }
    if (threadIdx.x == 0) {
        const BlockRun run =
            run_of_units(w, unit_span(args_.mode), rank() * args_.team_units, args_.team_units);
        b_.first = first;
        b_.rows = rows;
        b_.block = run.first;
        b_.steps = args_.ranks > 1 ? run.blocks : segment_end(w, w.segments - 1);
        b_.leaf_bytes = w.n_padded / exl3::kTile * (8 * 4 * kTileWords);
        b_.groups_bytes = args_.rotated_tiles * (256 * kLargeThreads / 32);
        const bool mcg = w.codebook == Codebook::mcg;
        b_.multiplier = mcg ? exl3::kMcgMultiplier : exl3::k3instMultiplier;
        b_.addend = mcg ? 0u : exl3::k3instAddend;
    }
    __syncthreads();
    return true;
}

// Starts the copies.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::begin_copies() {
    const int32_t block = b_.block;
    const int64_t row_bytes = b_.w.n_padded / exl3::kTile * (4 * kTileWords);
    weights_ = reinterpret_cast<const unsigned char*>(b_.w.trellis) +
               (block * 8 + lane() / 4) * row_bytes +
               (column_block() * 8 + warp() % 4 * 2) * (4 * kTileWords) + lane() % 4 * 16;
    inputs_ =
        reinterpret_cast<const unsigned char*>(args_.rotated + member() * args_.rotated_stride) +
        (b_.first / 8 + warp()) * (args_.rotated_tiles * 256) + int64_t{block} * kGroupBytes +
        lane() * 16;
}

// Starts the copies of a leaf's trellis into the warp's ring: two neighbouring tiles of a row by
// four lanes.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::fill(int step) {
    if (step < b_.steps) {
        const uint32_t to = shared_address(shared_) + ring() + step % kStages * (4 * kStageWords) +
                            lane() / 4 * (8 * kTileWords) + lane() % 4 * 16;
#pragma unroll
        for (int i = 0; i < kBits; ++i) copy_async_16(to + 64 * i, weights_ + 64 * i);
        weights_ += b_.leaf_bytes;
    }
    copy_async_commit();
}

// Starts the copies of a leaf's inputs: a warp takes the rows of every eighth group.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::copy_inputs(int step) {
    if (step < b_.steps) {
        const uint32_t to = shared_address(shared_) + kSumBytes + step % 2 * kInputBytes +
                            warp() * kGroupBytes + lane() * 16;
        const unsigned char* from = inputs_;
#pragma unroll
        for (int g = 0; g < kRowGroups; g += kLargeThreads / 32) {
            if (8 * (g + warp()) >= b_.rows) break;
#pragma unroll
            for (int i = 0; i < kGroupBytes; i += 512) {
                copy_async_16(to + g * kGroupBytes + i, from + i);
            }
            from += b_.groups_bytes;
        }
        inputs_ += kGroupBytes;
    }
    copy_async_commit();
}

// Between two leaves, for the whole thread block.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::begin(int step) {
    copy_async_wait<1>();  // the inputs of the step; a later fill may be under way
    // Not __syncthreads(): the halves come here from two places.
    asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(kLargeThreads) : "memory");
    copy_inputs(step + 1);
}

// A group's sums to those of its segment in shared memory.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::keep_sums(const Sums& sums,
                                                                 bool more) const {
    float* to = reinterpret_cast<float*>(shared_) + lane() % 4 * 2 * kLargeStride + warp() * 32 +
                lane() / 4;
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
        if (g % kTogether == 0 && 8 * g >= b_.rows) break;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float* at = to + (8 * g + i % 2) * kLargeStride + i / 4 * 16 + i % 4 / 2 * 8;
            // Not kept from one group to the next: the first is added to zero as everywhere.
            *at = (more ? *at : 0.0f) + sums[g][i / 4][i % 4];
        }
    }
}

// A unit's sums to memory, for exl3_large_end.cu.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::write_sums(const Sums& sums,
                                                                  int32_t unit) const {
    float* to = large_cell(args_, kRows, tile(), column(), unit) + lane() % 4 * 2 * exl3::kBlock +
                warp() % 4 * 32 + lane() / 4;
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
        if (g % kTogether == 0 && 8 * g >= b_.rows) break;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            __stcg(to + (8 * g + i % 2) * exl3::kBlock + i / 4 * 16 + i % 4 / 2 * 8,
                   sums[g][i / 4][i % 4]);
        }
    }
}

// The outputs of a segment, out of its sums.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::finish_segment(int32_t segment,
                                                                      bool empty) const {
    const LargeOutput out(args_, b_.w, member(), column_block(), segment);
    float* kept = large_cell(args_, kRows, tile(), column(), 0) + 4 * lane();
#pragma unroll 1
    for (int row = __shfl_sync(0xffffffffu, warp() % 4, 0); row < b_.rows; row += 4) {
        float v[4] = {};
        if (!empty) {
            const float4 in = *reinterpret_cast<const float4*>(
                shared_ + (row * kLargeStride + half() * exl3::kBlock + 4 * lane()) * 4);
            v[0] = in.x;
            v[1] = in.y;
            v[2] = in.z;
            v[3] = in.w;
        }
        hadamard128(v);
        out.add(b_.first + row, v, kept + row * exl3::kBlock);
    }
}

// Leaves [first, last) of one segment.
template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::sum(int first, int last, int32_t unit,
                                                           bool idle) {
    // By shuffles, so that the compiler knows that a warp goes one way, and not how the two relate:
    // it would lay out the loop twice.
    const bool early = __shfl_sync(0xffffffffu, half(), 1) == 0;
    const bool late = __shfl_sync(0xffffffffu, half(), 2) != 0;
    Sums sums = {};
#pragma unroll 1
    for (int step = first; step < last; ++step) {
        const int leaves = step + 1 - first;
        if constexpr (kRowGroups <= kWideGroups) {
            begin(step);
            if (idle) {
                copy_async_commit();  // begin() counts groups
                continue;
            }
            decode_and_multiply(sums, step);
        } else {
            // The halves differ in what follows the barrier.
            if (early) begin(step);
            Weights a;
            if (!idle) {
                decode(a, step);
            } else {
                copy_async_commit();  // begin() counts groups
            }
            if (late) begin(step);
            if (idle) continue;
            multiply(sums, a, step);
        }
        if (leaves % kGroupLeaves != 0 && step + 1 != last) continue;
        if (args_.ranks > 1) {
            write_sums(sums, unit++);
        } else {
            keep_sums(sums, leaves > kGroupLeaves);
        }
        // A zero that the compiler does not know: it would lay out the loop anew for what begins
        // with it, and run out of registers.
        float zero = 0.0f;
        asm volatile("" : "+f"(zero));
#pragma unroll
        for (int i = 0; i < 8 * kRowGroups; ++i) sums[i / 8][i / 4 % 2][i % 4] = zero;
    }
}

template <int kBits, bool kMul1, int kRowGroups>
__device__ void LargeKernel<kBits, kMul1, kRowGroups>::run() {
    if (args_.table != nullptr) wait_for_earlier_kernels();  // tiles are made by one
    if (!locate()) return;
    const bool idle = __shfl_sync(0xffffffffu, works() ? 0 : 1, 0) != 0;
    begin_copies();
#pragma unroll 1
    for (int step = 0; step < kStages && !idle; ++step) fill(step);
    wait_for_earlier_kernels();
    copy_inputs(0);
    copy_async_commit();  // begin() leaves one younger group under way
    int32_t unit = rank() * args_.team_units;
    int32_t begin = 0;
#pragma unroll 1
    for (int32_t s = 0; s < b_.w.segments; ++s) {
        const int32_t end = segment_end(b_.w, s);
        const int32_t first = max(begin - b_.block, 0);
        const int32_t last = min(end - b_.block, b_.steps);
        begin = end;
        if (first < last) {
            sum(first, last, unit, idle);
            unit += units_of(args_.mode, last - first);
        }
        if (args_.ranks > 1) continue;
        if (s + 1 == b_.w.segments) let_next_kernel_start();
        __syncthreads();  // all sums are there; the next are kept behind a barrier of sum()
        if (!idle) finish_segment(s, first >= last);
    }
}

template <int kBits, bool kMul1, int kRowGroups>
__global__ void __launch_bounds__(kLargeThreads, kRowGroups == kLargeGroups ? 1 : kWideResident)
    exl3_large_kernel(const __grid_constant__ Exl3Product args) {
    // Devices of other architectures have too little shared memory for all groups.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
    constexpr bool kRuns = true;
#else
    constexpr bool kRuns = kRowGroups < kLargeGroups;
#endif
    if constexpr (kRuns) {
        extern __shared__ __align__(128) unsigned char shared[];
        // Bytes: what has initialisers cannot be shared.
        __shared__ __align__(16) unsigned char block[sizeof(LargeBlock)];
        LargeKernel<kBits, kMul1, kRowGroups>(args, shared, *reinterpret_cast<LargeBlock*>(block))
            .run();
    }
}

}  // namespace quadrille::cuda

#include "kernels/cuda/exl3/exl3_large_leaf.cuh"
