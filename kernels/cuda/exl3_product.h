// SPDX-License-Identifier: Apache-2.0
// What one launch of the EXL3 product computes, and the pure host plan of how it is cut.
//
// One arithmetic per row: the inputs of a segment are cut into leaves of 256 (the last one may be
// 128), a leaf is one chain of MMAs over ascending input tiles from zero; four leaves (1024 inputs)
// are added left to right into a group, the groups left to right into the segment. Then come the
// output transform, svh, the tree over the segments and the bias. How many rows share a launch and
// which thread blocks hold the leaves (ProductMode) changes nothing of it.
#pragma once

#include "kernels/exl3.h"
#include "kernels/matrix.h"

#include <cstdint>
#include <vector_types.h>

namespace quadrille::cuda {

inline constexpr int kLeafBlocks = 2;   // Hadamard blocks (128 inputs) of a leaf
inline constexpr int kGroupBlocks = 8;  // of a group
inline constexpr int kGroupLeaves = kGroupBlocks / kLeafBlocks;

// Rows that share the weights of an expert in one thread block: positions [first, first + rows) of
// the pass's grouped rows; first is a multiple of 8.
struct RowTile {
    int32_t expert;
    int32_t first;
    int32_t rows;
};

// What one thread block sums: a leaf, a group, or a segment.
enum class ProductMode : int32_t { leaf, group, segment };

QUADRILLE_HOST_DEVICE constexpr int32_t units_of(ProductMode mode, int32_t blocks) {
    switch (mode) {
        case ProductMode::leaf:
            return (blocks + kLeafBlocks - 1) / kLeafBlocks;
        case ProductMode::group:
            return (blocks + kGroupBlocks - 1) / kGroupBlocks;
        case ProductMode::segment:
            return blocks > 0 ? 1 : 0;
    }
    return 0;
}

// Blocks [first, last) of 128 inputs that segment s of an EXL3 matrix covers.
struct BlockRange {
    int32_t first;
    int32_t last;
};
QUADRILLE_HOST_DEVICE constexpr BlockRange segment_blocks(const Matrix& w, int32_t s) {
    if (w.segments == 1) return {0, static_cast<int32_t>(w.k_padded / exl3::kBlock)};
    // Through the pointer: checked operators of std::array cannot run on a device.
    const int64_t* bounds = w.segment.data();
    return {static_cast<int32_t>(bounds[s] / exl3::kBlock),
            static_cast<int32_t>((bounds[s + 1] + exl3::kBlock - 1) / exl3::kBlock)};
}
QUADRILLE_HOST_DEVICE constexpr int32_t units_of(ProductMode mode, const Matrix& w) {
    int32_t units = 0;
    for (int32_t s = 0; s < w.segments; ++s) {
        const BlockRange range = segment_blocks(w, s);
        units += units_of(mode, range.last - range.first);
    }
    return units;
}

// Where the results of a launch go: row r of segment s to
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
    const int32_t* order = nullptr;       // result row of a position; nullptr: the position itself

    // Rotated inputs in fragment order, see rotate.cu; or the inputs themselves, rotated by each
    // thread block (leaf mode without tiles only).
    const uint2* rotated = nullptr;
    int64_t rotated_stride = 0;  // uint2 from one member's to the next
    int64_t rotated_tiles = 0;   // input tiles a row group has room for
    const float* x = nullptr;
    int64_t x_stride = 0;

    ProductOut out;
    float* partial = nullptr;
    int32_t* counters = nullptr;  // zero between launches

    ProductMode mode = ProductMode::leaf;
    int32_t units = 0;        // thread blocks over the inputs, the most of any matrix
    int32_t first_block = 0;  // columns: the first block of 128, and how many
    int32_t column_blocks = 0;
};

// How a product is launched. Pure host functions of shapes: the same on every machine of a kind.
struct Exl3Plan {
    ProductMode mode = ProductMode::leaf;
    int32_t groups = 1;  // 8-row groups of a tile: 1, 2, 4 or 8
    bool rotate_inside = false;

    int32_t rows() const { return 8 * groups; }
    // Blocks of 128 columns of a thread block.
    int32_t width() const { return groups >= 4 ? 2 : 1; }
};

// m rows of one matrix on a device of `processors` multiprocessors.
Exl3Plan plan_exl3(const Matrix& w, int64_t m, int32_t processors);
// pairs (row, slot) of `members` matrices of each of `experts` experts shaped like w.
Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           int32_t processors);

// The plan for tiles of 8 * groups rows, whatever it was made for.
Exl3Plan with_groups(Exl3Plan plan, const Matrix& w, int32_t groups);

// Floats of `partial` and numbers of `counters` that a launch over `tiles` row tiles needs.
struct Exl3Need {
    int64_t partial = 0;
    int64_t counters = 0;
};
Exl3Need exl3_need(const Exl3Plan& plan, int32_t units, int32_t column_blocks, int64_t tiles,
                   int32_t members);

}  // namespace quadrille::cuda
