// SPDX-License-Identifier: Apache-2.0
// A thread block of the tiled native product (native_tiled.cu): weights and split activations come
// through a ring of stages of 64 inputs in shared memory. Rows are the A operand of the tensor
// cores here and columns the B operand, so that 16 bytes of a column's weights are two operands as
// they lie; products and sums are those of the streaming kernel, where it is the other way round,
// in every shape of a thread block, and so are the bits.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/native/native_tile.cuh"

#include <cstdint>

namespace quadrille::cuda::native {

inline constexpr int kWarps = 8;
inline constexpr int kStep = 64;           // inputs of a stage
inline constexpr int kChunks = kStep / 8;  // 16 bytes of a column's weights
inline constexpr int kGroupRows = kNativeGroupRows;
// uint4 of a group's 32 inputs: two terms of 16 inputs, twice.
inline constexpr int kGroupWords = 4 * 32;

// A thread block: 8 warps in kParts parts of spans, which each have a ring of their own. Of a part,
// kAcross warps lie side by side along the columns, the others along the rows; a warp multiplies
// kGroups groups of 16 rows and kColumns times 8 columns. Two thread blocks fit on a multiprocessor
// that has 200 KB of shared memory, one on the smallest.
template <int kRowGroups, int kColumnTiles, int kAcrossWarps, int kSpanParts, int kRing>
struct Shape {
    static constexpr int kGroups = kRowGroups;
    static constexpr int kColumns = kColumnTiles;
    static constexpr int kAcross = kAcrossWarps;
    static constexpr int kParts = kSpanParts;
    static constexpr int kStages = kRing;
    static constexpr int kThreads = kWarps * 32 / kParts;  // of a part
    static constexpr int kBlockColumns = 8 * kColumns * kAcross;
    static constexpr int kBlockGroups = kGroups * (kWarps / kParts / kAcross);
    static constexpr int kBlockRows = kGroupRows * kBlockGroups;
    static constexpr int kWeightWords = kBlockColumns * kChunks;  // uint4 of a stage
    static constexpr int kStageWords = kWeightWords + kBlockGroups * 2 * kGroupWords;
    static constexpr int kRingWords = kStages * kStageWords;
    static constexpr int kSums = kGroups * kColumns;  // float4 of a thread
    static constexpr int kSharedBytes = 16 * kParts * kRingWords;
    static_assert(kSharedBytes <= 96 * 1024);
};

struct Rows {
    int32_t first;
    int32_t count;
    const Matrix* matrix;
};

__device__ inline bool rows_of_block(const NativeProduct& args, int32_t tile, int32_t tile_rows,
                                     Rows& rows) {
    if (args.table == nullptr) {
        const int32_t first = tile * tile_rows;
        rows = {first, min(tile_rows, args.m - first), &args.matrix};
        return true;
    }
    if (tile >= *args.tile_count) return false;
    const RowTile of = args.tiles[tile];
    const Mlp* mlp = args.table + of.expert;
    const int32_t member = args.member + static_cast<int32_t>(blockIdx.z);
    rows = {of.first, of.rows, member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down};
    return true;
}

template <class Tile>
class TiledKernel {
  public:
    __device__ TiledKernel(const NativeProduct& args, uint4* shared, const Rows& rows,
                           int32_t column_tile)
        : args_(args),
          shared_(shared + part() * Tile::kRingWords),
          rows_(rows),
          w_(*rows.matrix),
          first_column_(column_tile * Tile::kBlockColumns),
          columns_(static_cast<int32_t>(w_.n)),
          apart_(kApart * w_.k),
          groups_((rows.count + kGroupRows - 1) / kGroupRows),
          half_tiles_(static_cast<int32_t>((w_.k + 63) / 64 * 2)),
          weights_to_(16 * place(thread() / kChunks, thread() % kChunks)),
          weights_at_(place(warp_column() + lane() / 4, lane() % 4)),
          inputs_at_(Tile::kWeightWords + warp_group() * 2 * kGroupWords + lane()),
          other_half_(lane() / 4 % 2 == 0 ? 4 : -4) {}

    __device__ void run() {
        for (int32_t s = 0; s < w_.segments; ++s) {
            Sums total = {};
            segment(total, segment_inputs(w_, s), s == 0);
            if (part() == 0) store(total, s);
        }
    }

  private:
    using Sums = float[Tile::kGroups][Tile::kColumns][4];
    static constexpr int kPartSpans = 8 / Tile::kParts;

    static __device__ int thread() { return static_cast<int>(threadIdx.x) % Tile::kThreads; }
    static __device__ int part() { return static_cast<int>(threadIdx.x) / Tile::kThreads; }
    static __device__ int lane() { return thread() % 32; }
    // The warp's first in its thread block.
    static __device__ int warp_column() {
        return thread() / 32 % Tile::kAcross * 8 * Tile::kColumns;
    }
    static __device__ int warp_group() { return thread() / 32 / Tile::kAcross * Tile::kGroups; }

    // The place of 16 bytes of a column's weights: the columns of a quarter of a warp, two, lie in
    // different banks.
    static __device__ int place(int column, int chunk) {
        return column * kChunks + (chunk ^ column % 2 * 4);
    }

    static constexpr int kApart = Tile::kThreads / kChunks;  // columns of a thread's copies

    // The next 64 inputs of the thread block's columns into a stage; zeros for inputs and columns
    // that do not exist. left: inputs from here to the segment's end.
    __device__ void fill_weights(int32_t left, uint32_t stage) {
        const bool real = thread() % kChunks * 8 < left;
        const int32_t column = first_column_ + thread() / kChunks;
#pragma unroll
        for (int i = 0; i < Tile::kBlockColumns / kApart; ++i) {
            copy_async_16_or_zero(stage + weights_to_ + i * kApart * kChunks * 16,
                                  weights_from_ + i * apart_,
                                  real && column + i * kApart < columns_);
        }
        weights_from_ += kStep;
    }

    __device__ void fill_inputs(uint32_t stage) {
        const uint32_t to = stage + 16 * (Tile::kWeightWords + thread());
#pragma unroll
        for (int g = 0; g < Tile::kBlockGroups; ++g) {
            if (g >= groups_) break;
            const uint4* from = inputs_from_ + int64_t{g} * kGroupWords * half_tiles_;
#pragma unroll
            for (int i = 0; i < 2 * kGroupWords; i += Tile::kThreads) {
                copy_async_16(to + (g * 2 * kGroupWords + i) * 16, from + i);
            }
        }
        inputs_from_ += 2 * kGroupWords;
    }

    __device__ void begin_at(int32_t k) {
        const int64_t column = first_column_ + thread() / kChunks;
        weights_from_ =
            static_cast<const uint16_t*>(w_.weights) + column * w_.k + k + thread() % kChunks * 8;
        inputs_from_ = args_.fragments + thread() +
                       (int64_t{rows_.first / kGroupRows} * half_tiles_ + k / 32) * kGroupWords;
    }

    // total = the spans of one segment, in order (of the first part; the others have none). The
    // first weights of all are under way before earlier kernels have ended. The parts, of which the
    // first is the longest, go step by step together: compute-sanitizer does not follow copies that
    // are waited for behind a barrier of some of the threads.
    __device__ void segment(Sums& total, InputRange range, bool begin) {
        constexpr uint32_t kStageBytes = Tile::kStageWords * 16;
        constexpr uint32_t kLastStage = (Tile::kStages - 1) * kStageBytes;
        constexpr int32_t kAhead = (Tile::kStages - 1) * kStep;  // inputs from fill to use
        const auto span = static_cast<int32_t>(native_span(range.width));
        const auto width = static_cast<int32_t>(range.width);
        const int32_t skipped = min(part() * kPartSpans * span, width);
        // From the next fill on.
        int32_t left = min(kPartSpans * span, width - skipped);
        __syncthreads();  // the stages are free
        begin_at(static_cast<int32_t>(range.first) + skipped);
        const uint32_t ring = shared_address(shared_);
        // No copy that no step waits for: it would be under way when its place is written again.
#pragma unroll
        for (int s = 0; s < Tile::kStages - 1; ++s) {
            if (left > kStep * s) fill_weights(left - kStep * s, ring + s * kStageBytes);
        }
        if (begin) {
            wait_for_earlier_kernels();
            let_next_kernel_start();
        }
#pragma unroll
        for (int s = 0; s < Tile::kStages - 1; ++s) {
            if (left > 0) fill_inputs(ring + s * kStageBytes);
            copy_async_commit();
            left -= kStep;
        }
        Sums acc = {};
        Sums kept[kPartSpans] = {};
        uint32_t stage = 0;
        int32_t in_span = span;
        int spans = 0;
#pragma unroll 1
        for (int32_t first_left = min(kPartSpans * span, width); first_left > 0;
             first_left -= kStep) {
            copy_async_wait<Tile::kStages - 2>();
            __syncthreads();
            if (left > 0) {
                const uint32_t to = ring + (stage == 0 ? kLastStage : stage - kStageBytes);
                fill_weights(left, to);
                fill_inputs(to);
            }
            copy_async_commit();
            if (left + kAhead > 0 && warp_group() < groups_) step(acc, stage);
            left -= kStep;
            stage = stage == kLastStage ? 0 : stage + kStageBytes;
            in_span -= kStep;
            if (in_span == 0 || first_left <= kStep) {
                end_span(total, kept, acc, spans++);
                in_span = span;
            }
        }
        if constexpr (Tile::kParts > 1) add_parts(total, kept);
    }

    // The four MMAs of an accumulator (two of 16 inputs, high and low terms) wait for each other:
    // those of all columns go in between. Rows that do not exist hold whatever the stage held:
    // their sums are never stored.
    __device__ void step(Sums& acc, uint32_t stage) const {
        const uint4* w = shared_ + stage / 16 + weights_at_;
        const uint4* x = shared_ + stage / 16 + inputs_at_;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint4 b[Tile::kColumns];
            // The other half of a column's 64 inputs: see `place`.
            const uint4* from = half == 0 ? w : w + other_half_;
#pragma unroll
            for (int c = 0; c < Tile::kColumns; ++c) b[c] = from[8 * c * kChunks];
#pragma unroll
            for (int g = 0; g < Tile::kGroups; ++g) {
                uint4 a[4];  // high and low terms of 16 inputs, then of 16 more
#pragma unroll
                for (int i = 0; i < 4; ++i) a[i] = x[(2 * g + half) * kGroupWords + 32 * i];
#pragma unroll
                for (int i = 0; i < 4; ++i) multiply(acc[g], a[i], b, i / 2);
            }
        }
    }

    // Sixteen of 32 inputs (j: which).
    __device__ static void multiply(float (&acc)[Tile::kColumns][4], const uint4& x,
                                    const uint4 (&w)[Tile::kColumns], int j) {
        const uint32_t a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < Tile::kColumns; ++c) {
            mma_bf16(acc[c], a, j == 0 ? w[c].x : w[c].z, j == 0 ? w[c].y : w[c].w);
        }
    }

    template <class Work>
    __device__ static void each(Work&& work) {
#pragma unroll
        for (int g = 0; g < Tile::kGroups; ++g) {
#pragma unroll
            for (int c = 0; c < Tile::kColumns; ++c) work(g, c);
        }
    }
    static __device__ float4 quad(const float (&v)[4]) {
        return make_float4(v[0], v[1], v[2], v[3]);
    }
    static __device__ void add(float (&to)[4], float4 v) {
        to[0] += v.x;
        to[1] += v.y;
        to[2] += v.z;
        to[3] += v.w;
    }
    // acc, the sum of the part's span number `index`, to where it is added; and zero.
    __device__ static void end_span(Sums& total, Sums (&kept)[kPartSpans], Sums& acc, int index) {
        each([&](int g, int c) {
            if (part() == 0) add(total[g][c], quad(acc[g][c]));
#pragma unroll
            for (int s = 0; s < kPartSpans; ++s) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (Tile::kParts > 1 && s == index) kept[s][g][c][i] = acc[g][c][i];
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[g][c][i] = 0.0f;
        });
    }

    // The spans of the second part, through its ring, to the first part's sum.
    __device__ void add_parts(Sums& total, const Sums (&kept)[kPartSpans]) const {
        static_assert(Tile::kParts <= 2);
        static_assert(Tile::kParts == 1 ||
                      kPartSpans * Tile::kSums * Tile::kThreads <= Tile::kRingWords);
        auto* through = reinterpret_cast<float4*>(shared_);
        if (part() == 0) through += Tile::kRingWords;
        __syncthreads();  // the second part is done with its ring
#pragma unroll
        for (int s = 0; s < kPartSpans; ++s) {
            each([&](int g, int c) {
                const int at =
                    (s * Tile::kSums + g * Tile::kColumns + c) * Tile::kThreads + thread();
                if (part() == 1) through[at] = quad(kept[s][g][c]);
            });
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < kPartSpans; ++s) {
            each([&](int g, int c) {
                const int at =
                    (s * Tile::kSums + g * Tile::kColumns + c) * Tile::kThreads + thread();
                if (part() == 0) add(total[g][c], through[at]);
            });
        }
    }

    __device__ void store(const Sums& value, int32_t segment) const {
        const float* bias = args_.out.by_segment ? nullptr : w_.bias;
        float* out = args_.out.data + blockIdx.z * args_.out.member_stride +
                     segment * args_.out.segment_stride;
#pragma unroll
        for (int i = 0; i < 2 * Tile::kGroups; ++i) {
            const int row = kGroupRows * warp_group() + 8 * i + lane() / 4;
            if (row >= rows_.count) continue;
            const int32_t position = rows_.first + row;
            float* to =
                out + (args_.scatter ? args_.order[position] : position) * args_.out.row_stride;
#pragma unroll
            for (int c = 0; c < 2 * Tile::kColumns; ++c) {
                const int32_t n =
                    first_column_ + warp_column() + 8 * (c / 2) + lane() % 4 * 2 + c % 2;
                if (n >= columns_) continue;
                const float sum = value[i / 2][c / 2][i % 2 * 2 + c % 2];
                to[n] = bias != nullptr ? sum + bias[n] : sum;
            }
        }
    }

    const NativeProduct& args_;
    uint4* shared_;  // the part's ring
    Rows rows_;
    const Matrix& w_;
    int32_t first_column_;
    int32_t columns_;
    int64_t apart_;  // weights from a copy of the thread's to the next
    int groups_;
    int32_t half_tiles_;
    uint32_t weights_to_;  // of the thread's copies, bytes of a stage
    int weights_at_;       // of the lane's operands, words of a stage
    int inputs_at_;
    int other_half_;
    const uint16_t* weights_from_ = nullptr;
    const uint4* inputs_from_ = nullptr;
};

}  // namespace quadrille::cuda::native
