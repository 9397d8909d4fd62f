// SPDX-License-Identifier: Apache-2.0
// The EXL3 product of up to 64 rows: weights are decoded in registers as the A operand of the
// tensor cores (16 output columns), rows are the B operand (8 rows), so a decoded tile serves all
// rows of the thread block and few rows waste nothing.
//
// A thread block of 8 warps owns 128 or 256 columns of one unit of the inputs (exl3_product.h); a
// warp streams its own tile columns through a private ring in shared memory (no barrier), the
// rotated inputs are shared. Partial sums go to memory; the last thread block of a column block
// adds them in order and applies the output transform, so one launch does the whole product.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3_decode.cuh"
#include "kernels/cuda/exl3_product.h"
#include "kernels/cuda/hadamard.cuh"

#include <cuda_fp16.h>

#include <cstdint>

namespace quadrille::cuda {

inline constexpr int kProductThreads = 256;
inline constexpr int kProductWarps = kProductThreads / 32;

// One unit of a matrix: input blocks [first, first + blocks) of segment `segment`.
struct Unit {
    int32_t segment;
    int32_t first;
    int32_t blocks;
};

__device__ inline Unit unit_of(const Matrix& w, ProductMode mode, int32_t unit) {
    const int32_t span = mode == ProductMode::leaf    ? kLeafBlocks
                         : mode == ProductMode::group ? kGroupBlocks
                                                      : static_cast<int32_t>(w.k_padded);
    for (int32_t s = 0; s < w.segments; ++s) {
        const BlockRange range = segment_blocks(w, s);
        const int32_t count = units_of(mode, range.last - range.first);
        if (unit < count) {
            const int32_t first = range.first + unit * span;
            return {s, first, min(span, range.last - first)};
        }
        unit -= count;
    }
    return {0, 0, 0};
}

// sum += part; part = 0.
template <int kColumns, int kGroups>
__device__ __forceinline__ void add_into(float (&sum)[kColumns][kGroups][4],
                                         float (&part)[kColumns][kGroups][4]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[c][g][i] += part[c][g][i];
                part[c][g][i] = 0.0f;
            }
        }
    }
}

template <int kBits, bool kMul1, int kGroups>
class ProductKernel {
  public:
    static constexpr int kColumns = kGroups >= 4 ? 2 : 1;     // tile columns of a warp
    static constexpr int kStepTiles = kColumns == 2 ? 4 : 8;  // input tiles of a step
    static constexpr int kLeafSteps = kLeafBlocks * 8 / kStepTiles;
    static constexpr int kGroupSteps = kGroupBlocks * 8 / kStepTiles;
    static constexpr int kBlockColumns = kProductWarps * kColumns;  // tile columns of the block
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kStageBytes = kColumns * kStepTiles * kTileBytes;  // of a warp
    static constexpr int kStages = 49152 / (kProductWarps * kStageBytes) > 8 ? 8
                                   : 49152 / (kProductWarps * kStageBytes) < 4
                                       ? 4
                                       : 49152 / (kProductWarps * kStageBytes);
    static constexpr int kFragmentBytes = 8;  // of a lane, row group and input tile
    static constexpr int kFragmentsBytes = kStepTiles * kGroups * 32 * kFragmentBytes;
    static constexpr int kSharedBytes = kProductWarps * kStages * kStageBytes + 2 * kFragmentsBytes;
    static constexpr bool kSegments = kGroups < 8;  // a block may sum a whole segment

    __device__ ProductKernel(const Exl3Product& args, unsigned char* shared)
        : args_(args),
          ring_(shared + warp() * kStages * kStageBytes),
          fragments_(shared + kProductWarps * kStages * kStageBytes) {}

    __device__ void run();

  private:
    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    __device__ bool locate();
    __device__ void fill(int step);
    __device__ void load_row(float (&v)[4], int step) const;
    __device__ void rotate_row(float (&v)[4], int step);
    __device__ void load_step(uint2 (&next)[kGroups], int step) const;
    __device__ void store_step(const uint2 (&next)[kGroups], int step);
    __device__ void store_fragment(int step, int tile, int group, int l, uint2 halves);
    __device__ void multiply(float (&acc)[kColumns][kGroups][4], int step) const;
    __device__ void sum();
    __device__ void write_partial(const float (&sum)[kColumns][kGroups][4]);
    __device__ bool is_last();
    __device__ void finish();
    __device__ void finish_rows(int column_block, int row);
    __device__ void store_row(int row, int32_t segment, int64_t n, const float (&v)[4],
                              bool bias) const;
    // Rows of a warp that are finished together.
    static constexpr int kTogether = kGroups >= 4 ? 4 : kGroups;
    __device__ void add_segment(float (&v)[kTogether][4], const float* from, int32_t units) const;

    // Cells of 128 columns x one unit of partial sums, in the order tile, column block, unit.
    __device__ int64_t cell(int column_block) const {
        const int64_t tile = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
        const int64_t columns = int64_t{column_groups()} * kColumns;
        return (tile * columns + column_block) * args_.units;
    }
    __device__ int column_groups() const { return (args_.column_blocks + kColumns - 1) / kColumns; }

    const Exl3Product& args_;
    unsigned char* ring_;
    unsigned char* fragments_;
    const Matrix* w_ = nullptr;
    const unsigned char* trellis_ = nullptr;  // of the unit's first input tile
    int64_t row_bytes_ = 0;                   // from one input tile's row to the next
    uint32_t multiplier_ = 0;
    uint32_t addend_ = 0;
    Unit unit_{};
    int32_t units_ = 0;  // of this matrix
    int32_t first_ = 0;  // row positions [first_, first_ + rows_)
    int32_t rows_ = 0;
    int32_t groups_ = 0;  // 8-row groups in use
    int32_t column_ = 0;  // first tile column of this warp
    int32_t column_group_ = 0;
    int32_t steps_ = 0;
    bool active_ = false;  // this warp has columns
};

template <int kBits, bool kMul1, int kGroups>
__device__ bool ProductKernel<kBits, kMul1, kGroups>::locate() {
    const int32_t y = static_cast<int32_t>(blockIdx.y);
    first_ = y * 8 * kGroups;
    rows_ = min(8 * kGroups, args_.m - first_);
    const Matrix* source = &args_.matrix;
    if (args_.table != nullptr) {
        if (y >= *args_.tile_count) return false;
        const RowTile tile = args_.tiles[y];
        first_ = tile.first;
        rows_ = tile.rows;
        const Mlp* mlp = args_.table + tile.expert;
        const int32_t member = args_.member + static_cast<int32_t>(blockIdx.z);
        source = member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down;
    }
    // Its fields are read again and again: from shared memory at the cost of one read.
    __shared__ __align__(16) unsigned char kept[sizeof(Matrix)];
    static_assert(sizeof(Matrix) % 4 == 0 && sizeof(Matrix) / 4 <= kProductThreads);
    if (threadIdx.x < sizeof(Matrix) / 4) {
        reinterpret_cast<uint32_t*>(kept)[threadIdx.x] =
            reinterpret_cast<const uint32_t*>(source)[threadIdx.x];
    }
    __syncthreads();
    w_ = reinterpret_cast<const Matrix*>(kept);
    if (w_->trellis == nullptr || w_->bits != kBits || (w_->codebook == Codebook::mul1) != kMul1) {
        return false;
    }
    const int32_t unit = static_cast<int32_t>(blockIdx.x) / column_groups();
    column_group_ = static_cast<int32_t>(blockIdx.x) % column_groups();
    units_ = units_of(args_.mode, *w_);
    if (unit >= units_) return false;
    unit_ = unit_of(*w_, args_.mode, unit);
    groups_ = (rows_ + 7) / 8;
    steps_ = unit_.blocks * 8 / kStepTiles;
    multiplier_ = w_->codebook == Codebook::mcg ? exl3::kMcgMultiplier : exl3::k3instMultiplier;
    addend_ = w_->codebook == Codebook::mcg ? 0u : exl3::k3instAddend;
    const int32_t tiles = static_cast<int32_t>(w_->n_padded / exl3::kTile);
    row_bytes_ = int64_t{tiles} * kTileBytes;
    trellis_ =
        reinterpret_cast<const unsigned char*>(w_->trellis) + int64_t{unit_.first} * 8 * row_bytes_;
    const int32_t first_tile = args_.first_block * 8 + column_group_ * kBlockColumns;
    column_ = first_tile + warp() * kColumns;
    active_ = column_ < min(tiles, (args_.first_block + args_.column_blocks) * 8);
    return first_tile < tiles;
}

// Starts the copies of a step's trellis into the ring.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::fill(int step) {
    if (step < steps_ && active_) {
        const unsigned char* from =
            trellis_ + step * kStepTiles * row_bytes_ + int64_t{column_} * kTileBytes;
        unsigned char* to = ring_ + step % kStages * kStageBytes;
        // Neighbouring tile columns lie side by side: a row of the stage is one run of bytes.
        constexpr int kRow = kColumns * kTileBytes / 16;
#pragma unroll
        for (int i = 0; i < kStepTiles * kRow; i += 32) {
            const int c = i + lane();
            if (kStepTiles * kRow % 32 == 0 || c < kStepTiles * kRow) {
                copy_async_16(to + c * 16, from + c / kRow * row_bytes_ + c % kRow * 16);
            }
        }
    }
    copy_async_commit();
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::store_fragment(int step, int tile, int group,
                                                                     int l, uint2 halves) {
    *reinterpret_cast<uint2*>(fragments_ + step % 2 * kFragmentsBytes +
                              ((tile * kGroups + group) * 32 + l) * kFragmentBytes) = halves;
}

// A thread moves the same lane's fragment of every row group: input tile `warp` of the step.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::load_step(uint2 (&next)[kGroups],
                                                                int step) const {
    if (step >= steps_ || warp() >= kStepTiles) return;
    const int64_t tiles = args_.rotated_tiles;
    const int64_t tile = int64_t{unit_.first} * 8 + step * kStepTiles + warp();
    const uint2* from = args_.rotated + blockIdx.z * args_.rotated_stride +
                        (first_ / 8 * tiles + tile) * 32 + lane();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        if (g < groups_) next[g] = from[g * tiles * 32];
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::store_step(const uint2 (&next)[kGroups],
                                                                 int step) {
    if (step >= steps_ || warp() >= kStepTiles) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        if (g < groups_) store_fragment(step, warp(), g, lane(), next[g]);
    }
}

// One block of inputs (a step of 8 tiles) of one row, scaled: a warp per row, 4 inputs a lane.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::load_row(float (&v)[4], int step) const {
    const int64_t channel = (int64_t{unit_.first} + step) * exl3::kBlock + 4 * lane();
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = 0.0f;
    if (warp() >= rows_ || step >= steps_) return;
    const float* x = args_.x + (first_ + warp()) * args_.x_stride + channel;
    const auto* suh = reinterpret_cast<const __half*>(w_->suh) + channel;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (channel + i < w_->k) v[i] = x[i] * __half2float(suh[i]);
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::rotate_row(float (&v)[4], int step) {
    static_assert(kGroups > 1 || kStepTiles == 8);
    hadamard128(v);
    // Elements 4l .. 4l+3 are two pairs of input tile l/4; the pair (k, k+1) belongs to lane
    // (row, k%8/2), word k/8.
    const __half2 low = __floats2half2_rn(v[0], v[1]);
    const __half2 high = __floats2half2_rn(v[2], v[3]);
    const uint32_t pairs[2] = {*reinterpret_cast<const uint32_t*>(&low),
                               *reinterpret_cast<const uint32_t*>(&high)};
    const int tile = lane() / 4;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        const int target = warp() * 4 + 2 * (lane() % 2) + p;
        *reinterpret_cast<uint32_t*>(fragments_ + step % 2 * kFragmentsBytes +
                                     (tile * kGroups * 32 + target) * kFragmentBytes +
                                     lane() % 4 / 2 * 4) = pairs[p];
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::multiply(float (&acc)[kColumns][kGroups][4],
                                                               int step) const {
    const unsigned char* stage = ring_ + step % kStages * kStageBytes;
    const unsigned char* inputs = fragments_ + step % 2 * kFragmentsBytes;
    const LanePlace<kBits> place(lane());
#pragma unroll
    for (int t = 0; t < kStepTiles; ++t) {
        uint32_t a[kColumns][4];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const LaneWindow<kBits> window = place.load(
                reinterpret_cast<const uint32_t*>(stage + (t * kColumns + c) * kTileBytes));
            decode_tile<kBits, kMul1>(a[c], window, multiplier_, addend_);
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g > 0 && g >= groups_) break;
            const uint2 b = *reinterpret_cast<const uint2*>(
                inputs + ((t * kGroups + g) * 32 + lane()) * kFragmentBytes);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) mma_f16(acc[c][g], a[c], b.x, b.y);
        }
    }
}

// All steps of the unit, and its sum to memory.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::sum() {
    float acc[kColumns][kGroups][4] = {};
    float group[kColumns][kGroups][4] = {};
    float total[kColumns][kSegments ? kGroups : 1][4] = {};
    uint2 next[kGroups] = {};
    for (int step = 0; step < kStages - 1; ++step) fill(step);
    wait_for_earlier_kernels();  // the weights are under way
    const bool rotate = kGroups == 1 && args_.rotated == nullptr;
    if (rotate) {  // a leaf: two steps
        float v[2][4];
        load_row(v[0], 0);
        load_row(v[1], 1);
        rotate_row(v[0], 0);
        rotate_row(v[1], 1);
    } else {
        load_step(next, 0);
        store_step(next, 0);
    }
    __syncthreads();
    for (int step = 0; step < steps_; ++step) {
        if (!rotate) load_step(next, step + 1);
        copy_async_wait<kStages - 2>();
        __syncwarp();
        if (active_) multiply(acc, step);
        if ((step + 1) % kLeafSteps == 0 || step + 1 == steps_) add_into(group, acc);
        if constexpr (kSegments) {
            if ((step + 1) % kGroupSteps == 0 || step + 1 == steps_) add_into(total, group);
        }
        __syncwarp();  // every lane has read the stage that is filled next
        fill(step + kStages - 1);
        if (!rotate) store_step(next, step + 1);
        __syncthreads();
    }
    if constexpr (kSegments) {
        write_partial(total);
    } else {
        write_partial(group);
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::write_partial(
    const float (&sum)[kColumns][kGroups][4]) {
    if (!active_) return;
    const int column = warp() * kColumns * exl3::kTile;  // in the thread block
    const int unit = static_cast<int>(blockIdx.x) / column_groups();
    float* to = args_.partial +
                (cell(column_group_ * kColumns + column / exl3::kBlock) + unit) *
                    (8 * kGroups * exl3::kBlock) +
                column % exl3::kBlock + lane() / 4;
    const int row = lane() % 4 * 2;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g > 0 && g >= groups_) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[(8 * g + row + i % 2) * exl3::kBlock + c * exl3::kTile + i / 2 * 8] =
                    sum[c][g][i];
            }
        }
    }
}

// True for all threads of the block that completes the column block.
template <int kBits, bool kMul1, int kGroups>
__device__ bool ProductKernel<kBits, kMul1, kGroups>::is_last() {
    if (units_ == 1) {
        __syncthreads();
        return true;
    }
    __shared__ int32_t arrived;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // of the whole block's sums, which the barrier has ordered before
        int32_t* counter = args_.counters + cell(column_group_ * kColumns) / args_.units;
        arrived = atomicAdd(counter, 1);
        if (arrived == units_ - 1) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return arrived == units_ - 1;
}

// v[r] += one segment's units of row r in order: leaves into groups, groups into the segment. All
// loads of a batch are under way together: their latency is what this costs.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::add_segment(float (&v)[kTogether][4],
                                                                  const float* from,
                                                                  int32_t units) const {
    constexpr int kCell = 8 * kGroups * exl3::kBlock;
    constexpr int kBatch = 8 / kTogether;
    const int span = args_.mode == ProductMode::leaf ? kGroupLeaves : 1;
    float group[kTogether][4] = {};
    for (int first = 0; first < units; first += kBatch) {
        float4 part[kBatch][kTogether];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
#pragma unroll
            for (int r = 0; r < kTogether; ++r) {
                if (first + u < units) {
                    part[u][r] = __ldcg(reinterpret_cast<const float4*>(
                        from + (first + u) * kCell + r * kProductWarps * exl3::kBlock));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
            if (first + u >= units) break;
            const bool ends = (first + u + 1) % span == 0 || first + u + 1 == units;
#pragma unroll
            for (int r = 0; r < kTogether; ++r) {
                group[r][0] += part[u][r].x;
                group[r][1] += part[u][r].y;
                group[r][2] += part[u][r].z;
                group[r][3] += part[u][r].w;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (ends) {
                        v[r][i] += group[r][i];
                        group[r][i] = 0.0f;
                    }
                }
            }
        }
    }
}

// Rows `row`, `row` + 8, .. of 128 columns by a warp; rows behind the last are computed for
// nothing.
template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::finish_rows(int column_block, int row) {
    const int64_t n = (int64_t{args_.first_block} + column_block) * exl3::kBlock + 4 * lane();
    const float* from = args_.partial + cell(column_block) * (8 * kGroups * exl3::kBlock) +
                        row * exl3::kBlock + 4 * lane();
    float svh[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        svh[i] = __half2float(reinterpret_cast<const __half*>(w_->svh)[n + i]);
    }
    // (s0 + s1) + (s2 + s3): the first of a pair is kept, the second added to it.
    float tree[2][kTogether][4] = {};
    int32_t unit = 0;
    for (int32_t s = 0; s < w_->segments; ++s) {
        const BlockRange range = segment_blocks(*w_, s);
        const int32_t units = units_of(args_.mode, range.last - range.first);
        float v[kTogether][4] = {};
        add_segment(v, from + int64_t{unit} * (8 * kGroups * exl3::kBlock), units);
        unit += units;
#pragma unroll
        for (int r = 0; r < kTogether; ++r) {
            hadamard128(v[r]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                v[r][i] *= svh[i];
                if (s < 2) {
                    tree[0][r][i] = s == 0 ? v[r][i] : tree[0][r][i] + v[r][i];
                } else {
                    tree[1][r][i] = s == 2 ? v[r][i] : tree[1][r][i] + v[r][i];
                }
            }
            if (args_.out.by_segment) store_row(row + r * kProductWarps, s, n, v[r], false);
        }
    }
    if (args_.out.by_segment) return;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (w_->segments == 4) tree[0][r][i] += tree[1][r][i];
        }
        store_row(row + r * kProductWarps, 0, n, tree[0][r], w_->bias != nullptr);
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::store_row(int row, int32_t segment, int64_t n,
                                                                const float (&v)[4],
                                                                bool bias) const {
    if (row >= rows_) return;
    const int position = first_ + row;
    const int64_t target = args_.order == nullptr ? position : args_.order[position];
    float* out = args_.out.data + blockIdx.z * args_.out.member_stride +
                 target * args_.out.row_stride + segment * args_.out.segment_stride + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (n + i < w_->n) out[i] = bias ? v[i] + w_->bias[n + i] : v[i];
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::finish() {
    for (int c = 0; c < kColumns; ++c) {
        const int column_block = column_group_ * kColumns + c;
        if (column_block >= args_.column_blocks ||
            (args_.first_block + column_block) * int64_t{exl3::kBlock} >= w_->n) {
            break;
        }
        for (int row = warp(); row < rows_; row += kTogether * kProductWarps) {
            finish_rows(column_block, row);
        }
    }
}

template <int kBits, bool kMul1, int kGroups>
__device__ void ProductKernel<kBits, kMul1, kGroups>::run() {
    let_next_kernel_start();
    if (args_.table != nullptr) wait_for_earlier_kernels();  // tiles are made by one
    if (!locate()) return;
    sum();
    if (is_last()) finish();
}

template <int kBits, bool kMul1, int kGroups>
__global__ void __launch_bounds__(kProductThreads, kGroups == 1   ? 3
                                                   : kGroups == 2 ? 2
                                                                  : 1)
    exl3_product_kernel(const __grid_constant__ Exl3Product args) {
    extern __shared__ __align__(128) unsigned char shared[];
    ProductKernel<kBits, kMul1, kGroups>(args, shared).run();
}

}  // namespace quadrille::cuda
