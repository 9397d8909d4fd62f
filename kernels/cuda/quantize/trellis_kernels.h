// SPDX-License-Identifier: Apache-2.0
// Launchers of the search for EXL3 codes on a GPU. All take device memory, wait for nothing, and
// compute what kernels/cpu/trellis_encoder.cpp does, in its order: the same bits.
#pragma once

#include "kernels/cuda/handles.h"
#include "kernels/trellis_encoder.h"

#include <cstdint>

namespace quadrille::cuda {

// 128 columns of a matrix of n columns, and what they are encoded with.
inline constexpr int kGroupColumns = 128;
inline constexpr int kGroupTiles = kGroupColumns / 16;
struct ColumnGroup {
    const float* weights = nullptr;  // (k, 128), rows n apart
    float* errors = nullptr;         // (k, 128), rows n apart
    uint16_t* states = nullptr;      // (k/16, 8, 256), row blocks 16 n apart
    double* error = nullptr;         // (8, k/16) out of measure
    double* energy = nullptr;        // (8, k/16)
    int64_t n = 0;
    bool has_hessian = false;
    TrellisHessian hessian;  // device memory
};

// What viterbi needs beside its tiles.
struct TrellisScratch {
    const F16* table = nullptr;   // (65536) the codebook
    uint32_t* choices = nullptr;  // (blocks, 256, 1024)
    int32_t blocks = 0;           // thread blocks, one a multiprocessor
};
inline constexpr int64_t kChoiceWords = 256 * 1024;  // of a thread block

// states (count, 256) of tiles (count, 256). tied: they begin with the seam they are to keep.
void viterbi(uint16_t* states, const float* tiles, int64_t count, int bits, bool tied,
             const TrellisScratch& scratch, LaunchStream stream);

// One row block of all groups. k: of every matrix.
struct RowBlock {
    const ColumnGroup* groups = nullptr;
    int32_t group_count = 0;
    int64_t k = 0;
    int64_t block = 0;
    bool sweep = false;
    float* tiles = nullptr;      // (8 group_count, 256) what is to be encoded, stream order
    uint16_t* states = nullptr;  // (8 group_count, 256)
};
// Fills tiles, in a sweep the states too.
void gather_targets(const RowBlock& rows, LaunchStream stream);
// Takes the states over where they are better, and their errors.
void keep_states(const RowBlock& rows, const F16* table, LaunchStream stream);
// error and energy of every tile.
void measure(const ColumnGroup* groups, int32_t group_count, int64_t k, LaunchStream stream);

}  // namespace quadrille::cuda
