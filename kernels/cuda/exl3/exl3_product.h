// SPDX-License-Identifier: Apache-2.0
// What one launch of the EXL3 product computes; exl3_plan.h is how it is cut.
//
// One arithmetic per row: a leaf (128 inputs) is one chain of MMAs over ascending input tiles from
// zero; the leaves of a segment are added left to right into groups of four (512 inputs, the last
// one may be shorter), the groups left to right into the segment. Then come the output transform,
// svh, the tree over the segments and the bias. How many rows share a launch and which thread
// blocks hold the leaves changes nothing of it.
#pragma once

#include "kernels/exl3.h"
#include "kernels/matrix.h"

#include <cstdint>
#include <vector_types.h>

namespace quadrille::cuda {

inline constexpr int kLeafBlocks = 1;   // Hadamard blocks (128 inputs) of a leaf
inline constexpr int kGroupBlocks = 4;  // of a group
inline constexpr int kGroupLeaves = kGroupBlocks / kLeafBlocks;
inline constexpr int kHalvesGroups = 2;  // the most row groups of a product in halves
inline constexpr int kWaitsGroups = 2;   // of one that waits for sums
inline constexpr int kInsideGroups = 2;  // of experts that rotate their inputs
inline constexpr int kHalfStride = 68;   // floats of a row of 64 in shared memory: no conflicts

// The most 128-input blocks of a warp's ring of weights, and of a team's inputs. Two teams stay
// within the 99 KB of shared memory that the smallest devices have, except with more than 4 bits
// and 32 rows or more (exl3_teams).
QUADRILLE_HOST_DEVICE constexpr int32_t ring_stages(int32_t bits, int32_t groups) {
    return bits <= (groups >= 4 ? 2 : 4) ? 4 : 2;
}
QUADRILLE_HOST_DEVICE constexpr int32_t input_blocks(int32_t groups) {
    return groups == 1 ? 8 : groups == 8 ? 2 : 4;
}
// The most teams of a thread block.
constexpr int32_t exl3_teams(int32_t bits, int32_t groups) {
    return groups >= 4 && bits > 4 ? 1 : 2;
}
// Inputs or outputs of a matrix, exclusive: kernels count them, and sums of two, in 32 bits.
inline constexpr int64_t kMostChannels = int64_t{1} << 30;
// Warps of a team, one for each tile column: of 128 columns, or with `halves` of 64.
QUADRILLE_HOST_DEVICE constexpr int32_t team_warps(bool halves) {
    return halves ? 4 : 8;
}
// Thread blocks of many rows (exl3_large.cuh): 16 row groups, or 2, and 256 columns, 32 of them a
// warp's. Rows of sums in shared memory lie so that no two lanes of a fragment share a bank.
inline constexpr int kLargeGroups = 16;
inline constexpr int kWideGroups = 2;
inline constexpr int kWideResident = 3;  // thread blocks of them on a multiprocessor
inline constexpr int kLargeThreads = 256;

// Bytes of shared memory of a thread block beside its dynamic ones: static ones of
// exl3_product_kernel at most, and what the device keeps for itself.
inline constexpr int32_t kProductStatic = 256;
inline constexpr int32_t kReservedShared = 1024;
inline constexpr int kLargeStride = 2 * exl3::kBlock + 4;
QUADRILLE_HOST_DEVICE constexpr int32_t large_sum_bytes(int32_t groups) {
    return 8 * groups * kLargeStride * 4;
}
// Leaves of a warp's ring of weights.
QUADRILLE_HOST_DEVICE constexpr int32_t large_stages(int32_t bits, int32_t groups) {
    return bits <= 4 || groups < kLargeGroups ? 2 : 1;
}

// Rows that share the weights of an expert in one thread block: positions [first, first + rows) of
// the pass's grouped rows; first is a multiple of 8. Expert -1: no tile.
struct RowTile {
    int32_t expert;
    int32_t first;
    int32_t rows;
};

// A unit of the inputs, whose sum is kept apart until the end. Segments only in thread blocks of
// one team that sum the whole matrix.
enum class ProductMode : int32_t { leaf, group, segment };

QUADRILLE_HOST_DEVICE constexpr int32_t unit_span(ProductMode mode) {
    return mode == ProductMode::leaf    ? kLeafBlocks
           : mode == ProductMode::group ? kGroupBlocks
                                        : int32_t{1} << 20;
}
QUADRILLE_HOST_DEVICE constexpr int32_t units_of(ProductMode mode, int32_t blocks) {
    return (blocks + unit_span(mode) - 1) / unit_span(mode);
}

// Behind the last block of 128 inputs of segment s; it begins where the one before it ends.
QUADRILLE_HOST_DEVICE constexpr int32_t segment_end(const Matrix& w, int32_t s) {
    if (w.segments == 1) return static_cast<int32_t>(w.k_padded) / exl3::kBlock;
    // Through the pointer: checked operators of std::array cannot run on a device.
    return (static_cast<int32_t>(w.segment.data()[s + 1]) + exl3::kBlock - 1) / exl3::kBlock;
}
QUADRILLE_HOST_DEVICE constexpr int32_t units_of(ProductMode mode, const Matrix& w) {
    int32_t units = 0;
    int32_t begin = 0;
    for (int32_t s = 0; s < w.segments; ++s) {
        const int32_t end = segment_end(w, s);
        units += units_of(mode, end - begin);
        begin = end;
    }
    return units;
}

// `blocks` input blocks from `first` on.
struct BlockRun {
    int32_t first;
    int32_t blocks;
};
// `count` units from `unit` on, or those that there are; units of `span` blocks.
QUADRILLE_HOST_DEVICE constexpr BlockRun run_of_units(const Matrix& w, int32_t span, int32_t unit,
                                                      int32_t count) {
    BlockRun run = {-1, 0};
    int32_t begin = 0;
    for (int32_t s = 0; s < w.segments && count > 0; ++s) {
        const int32_t end = segment_end(w, s);
        const int32_t units = (end - begin + span - 1) / span;
        if (unit < units) {
            const int32_t left = units - unit;
            const int32_t taken = left < count ? left : count;
            const int32_t first = begin + unit * span;
            const int32_t last = first + taken * span;
            if (run.first < 0) run.first = first;
            run.blocks += (last < end ? last : end) - first;
            count -= taken;
            unit = 0;
        } else {
            unit -= units;
        }
        begin = end;
    }
    return {run.first > 0 ? run.first : 0, run.blocks};
}

// Results of a launch go to `out`: row r of segment s to
// out + z * member_stride + r * row_stride + s * segment_stride.
struct ProductOut {
    float* data = nullptr;
    int64_t row_stride = 0;
    int64_t segment_stride = 0;
    int64_t member_stride = 0;
    bool by_segment = false;  // every segment apart, no tree, no bias
};

struct Exl3Product {
    Matrix matrix{};  // of all rows, unless `table` is given
    // Experts: the matrix of a tile is that of its expert. Tiles whose matrix is of another kind
    // (bits, codebook family, native) are left out.
    const Mlp* table = nullptr;
    int32_t member = 0;  // 0 gate, 1 up, 2 down; the grid's z is added

    int32_t m = 0;                        // rows, without `tiles`
    const RowTile* tiles = nullptr;       // one per y of the grid
    const int32_t* tile_count = nullptr;  // how many of them count
    // Tiles, and input_order and the x that it leads to, were complete before this kernel could
    // start: a kernel behind the one that made the tiles waited for it before it let the next one
    // start. What depends on nothing else then goes on while the kernel before this one ends: most
    // of all, weights are copied.
    bool tiles_early = false;
    const int32_t* order = nullptr;  // result row of a position; nullptr: the position itself

    // Rotated inputs in fragment order, see exl3_rotate.h; or the inputs themselves, rotated by
    // each team (no more of them than it has room for; experts: of up to kInsideGroups row groups).
    // Position p is row p of x, or with `input_order` row input_order[p] / slots; with `up`, the
    // input is swiglu(x, up) (limit as Backend::swiglu).
    const uint2* rotated = nullptr;
    int64_t rotated_stride = 0;  // uint2 from one member's to the next
    int64_t rotated_tiles = 0;   // input tiles a row group has room for
    const float* x = nullptr;
    int64_t x_stride = 0;
    const int32_t* input_order = nullptr;
    int32_t slots = 1;
    float limit = 0.0f;
    const float* up = nullptr;

    ProductOut out;
    ProductMode mode = ProductMode::leaf;
    float* partial = nullptr;     // sums of units
    int32_t* counters = nullptr;  // zero between launches
    int32_t units = 0;            // the most of any matrix
    int32_t ranks = 1;            // thread blocks of a column block, the most of any matrix
    int32_t teams = 1;            // of a thread block
    int32_t team_units = 1;       // units of a team
    bool halves = false;          // Exl3Tiling::halves
    bool waits = false;           // Exl3Plan: no counters, and `partial` holds kMissing
    int32_t stages = 1;           // of a warp's ring of weights: 128 inputs each
    int32_t input_blocks = 1;     // of a team's inputs
    int32_t first_block = 0;      // columns: the first block of 128
    int32_t column_blocks = 0;    // and how many
};

// What stands where a sum is missing: a NaN that no addition makes (theirs is 0x7fffffff).
inline constexpr uint32_t kMissing = 0xffffffffu;

// The shared memory of a thread block of 256 columns holds their sums, two leaves of inputs and the
// warps' rings of weights.
constexpr int32_t large_shared_bytes(int32_t bits, int32_t groups) {
    const int32_t inputs = 2 * 8 * groups * exl3::kBlock * 2;
    return large_sum_bytes(groups) + inputs +
           8 * large_stages(bits, groups) * 16 * 4 * exl3::tile_words(bits);
}

}  // namespace quadrille::cuda
