// SPDX-License-Identifier: Apache-2.0
// Exl3Plan: the tile shape of an EXL3 product and which thread blocks share its inputs. Pure host
// functions of shapes: the same on every machine of a kind. Nothing here changes a result.
#pragma once

#include "kernels/cuda/exl3/exl3_product.h"

#include <cstdint>

namespace quadrille::cuda {

// The outputs of a thread block, rows x columns.
enum class Exl3Tiling : int32_t {
    teams,   // 8, 16, 32 or 64 x 128: one or two teams, each with units of its own
    halves,  // 8 or 16 x 64: a group of leaves, four small teams a leaf each, added at once
    wide,    // 16 x 256 (kWideGroups): the kernel of exl3_large.cuh, no teams
    large,   // 128 x 256 (kLargeGroups): likewise
};

// Floats of partial sums of a launch. Beyond it units are longer, or its rows come in slabs.
inline constexpr int64_t kPartialLimit = int64_t{64} << 20;

struct Exl3Plan {
    Exl3Tiling tiling = Exl3Tiling::teams;
    int32_t groups = 1;  // 8-row groups of a tile
    ProductMode mode = ProductMode::leaf;
    int32_t teams = 1;
    int32_t team_units = 1;
    int32_t ranks = 1;
    bool rotate_inside = false;
    // All thread blocks are on the device together, and the last one of a column block waits for
    // the sums of the others: it looks at them until none is kMissing. Against counting who has
    // written: no fence, and two ways to memory and back less.
    bool waits = false;
    // Thread blocks of a multiprocessor at a time, where it gets no more in all; 0: as many as fit.
    int32_t resident = 0;

    bool halves() const { return tiling == Exl3Tiling::halves; }
    // exl3_large.cuh: 256 columns to a thread block.
    bool large_kernel() const { return tiling == Exl3Tiling::wide || tiling == Exl3Tiling::large; }
    int32_t rows() const { return 8 * groups; }
    int32_t units_of_rank() const { return halves() ? 1 : teams * team_units; }
    int32_t column_parts() const { return halves() ? 2 : 1; }  // thread blocks of 128 columns
};

// What a plan depends on besides shapes.
struct Exl3Device {
    int32_t processors;           // multiprocessors
    int32_t shared;               // bytes, the most dynamic shared memory of a thread block
    int32_t shared_of_processor;  // bytes, of all thread blocks that a multiprocessor holds
};

// m rows of one matrix.
Exl3Plan plan_exl3(const Matrix& w, int64_t m, const Exl3Device& device);
// pairs (row, slot) of `members` matrices of each of `experts` experts shaped like w; in tiles of
// 8 * groups rows, or as the pairs ask for with groups 0. gated: the inputs are swiglu of two.
Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           const Exl3Device& device, int32_t groups = 0, bool gated = false);

// Floats of `partial` and numbers of `counters` that a launch over `tiles` row tiles needs;
// by_segment: as ProductOut.
struct Exl3Need {
    int64_t partial = 0;
    int64_t counters = 0;
};
Exl3Need exl3_need(const Exl3Plan& plan, const Matrix& w, int32_t column_blocks, int64_t tiles,
                   int32_t members, bool by_segment);

// The fields of a launch that follow from its plan, and its dynamic shared memory in bytes.
void apply_plan(Exl3Product& args, const Exl3Plan& plan, const Matrix& w);
int32_t shared_bytes(const Exl3Product& args, int32_t groups, const Matrix& w);

}  // namespace quadrille::cuda
