// SPDX-License-Identifier: Apache-2.0
// Rotated inputs of EXL3 products: fp16( H (x * suh) ), in the order in which the tensor core's B
// operand wants them. Per group of 8 row positions and tile of 16 inputs, 32 lanes of four halves:
// lane 4r + q holds inputs 2q, 2q+1, 2q+8, 2q+9 of row r.
#pragma once

#include "kernels/cuda/exl3/exl3_product.h"
#include "kernels/cuda/handles.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace quadrille::cuda {

struct Rotation {
    // One matrix: position p is row p of x. Experts: for gate and up, row order[p] / slots; for
    // down, where `up` is given, swiglu(x, up) of position p (limit as Backend::swiglu).
    const float* x = nullptr;
    int64_t x_stride = 0;
    const float* up = nullptr;
    float limit = 0.0f;
    const int32_t* order = nullptr;
    int32_t slots = 1;

    int32_t m = 0;                   // rows; of experts, the most of all tiles together
    const RowTile* tiles = nullptr;  // of experts
    bool tiles_early = false;        // as Exl3Product: they, order and the x that it leads to
    int32_t tile_rows = 64;          // the most of a tile

    Matrix matrix{};             // or
    const Mlp* table = nullptr;  // experts

    uint2* out = nullptr;
    int64_t out_stride = 0;  // uint2 from gate's to up's
    int64_t out_tiles = 0;   // input tiles a row group has room for
};

// uint2 for `positions` rows of k_padded inputs.
constexpr int64_t rotated_size(int64_t positions, int64_t k_padded) {
    return (positions + 7) / 8 * (k_padded / exl3::kTile) * 32;
}

// Writes the rows that there are. k_padded: the most of any matrix.
void rotate(const Rotation& rotation, int64_t k_padded, int32_t tiles, int32_t processors,
            LaunchStream stream);

}  // namespace quadrille::cuda
