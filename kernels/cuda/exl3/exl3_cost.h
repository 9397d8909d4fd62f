// SPDX-License-Identifier: Apache-2.0
// How long an EXL3 product takes on an H200, for exl3_plan.cpp to choose by. Pure host functions.
//
// Microseconds beyond what every product takes, good to about a tenth; close candidates are ranked
// better than that, being wrong alike. Other devices differ, but in the same direction.
#pragma once

#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/exl3/exl3_plan.h"

#include <algorithm>

namespace quadrille::cuda {

// What a plan cuts: row tiles of plan.rows() rows, times blocks of 128 columns of all matrices.
struct Exl3Work {
    const Matrix& w;
    int64_t columns;  // blocks of 128 columns of all row tiles
    int64_t rows;     // of a tile: of the fullest one, or of many on average
    int64_t total;    // rows in all
    const Exl3Device& device;
    bool experts;         // of many matrices
    int32_t members = 1;  // of each expert, each with its own rotation of the inputs
    bool gated = false;   // inputs are swiglu of two
};

// Thread blocks of kWideGroups that a multiprocessor has room for; about, for there may be more
// shared memory than one may have. 0: for none.
inline int32_t wide_resident(const Matrix& w, const Exl3Device& device) {
    constexpr int32_t kOwn = 1024;
    const int32_t bytes = large_shared_bytes(w.bits, kWideGroups) + kOwn;
    return std::min(kWideResident, (device.shared + kOwn) / bytes);
}
inline int32_t blocks_of(const Matrix& w) {
    return segment_end(w, w.segments - 1);
}
// The most blocks of 128 inputs of a team.
inline int64_t team_blocks(const Exl3Plan& plan) {
    return plan.halves() ? kLeafBlocks : int64_t{plan.team_units} * unit_span(plan.mode);
}

// The kernel that rotates the inputs before, or nothing.
double rotation_cost(const Exl3Plan& plan, const Exl3Work& work);
// The product alone: Exl3Tiling::teams and halves; or wide and large.
double product_cost(const Exl3Plan& plan, const Exl3Work& work);
double large_cost(const Exl3Plan& plan, const Exl3Work& work);

inline double exl3_cost(const Exl3Plan& plan, const Exl3Work& work) {
    return rotation_cost(plan, work) +
           (plan.large_kernel() ? large_cost(plan, work) : product_cost(plan, work));
}

}  // namespace quadrille::cuda
