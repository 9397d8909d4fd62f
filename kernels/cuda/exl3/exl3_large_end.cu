// SPDX-License-Identifier: Apache-2.0
// The end of an EXL3 product of many rows whose inputs several thread blocks have shared: a warp
// adds the sums of a row's groups in order, and finishes 128 outputs.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3/exl3_columns.cuh"
#include "kernels/cuda/exl3/exl3_launch.h"

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kBatch = 8;  // units whose loads are under way together

// v: one segment's units of four columns of a row, added in order; `cell` floats apart.
__device__ void add_units(float (&v)[4], const float* from, int32_t units, int32_t cell) {
#pragma unroll 1
    for (; units > 0; units -= kBatch, from += kBatch * cell) {
        float4 part[kBatch];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
            if (u < units) part[u] = __ldcg(reinterpret_cast<const float4*>(from + u * cell));
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
            if (u >= units) continue;
            v[0] += part[u].x;
            v[1] += part[u].y;
            v[2] += part[u].z;
            v[3] += part[u].w;
        }
    }
}

__global__ void __launch_bounds__(kWarps * 32)
    exl3_large_end_kernel(const __grid_constant__ Exl3Product args, int32_t tile_rows) {
    let_next_kernel_start();
    const Matrix& w = args.matrix;
    const auto column = static_cast<int32_t>(blockIdx.x);
    const int32_t row =
        static_cast<int32_t>(blockIdx.y) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
    if (row >= args.m || (args.first_block + column) * exl3::kBlock >= w.n) return;
    wait_for_earlier_kernels();
    const int32_t cell = tile_rows * exl3::kBlock;
    const float* from = large_cell(args, tile_rows, row / tile_rows, column, 0) +
                        row % tile_rows * exl3::kBlock + static_cast<int32_t>(threadIdx.x) % 32 * 4;
    float kept[4] = {};
#pragma unroll 1
    for (int32_t s = 0, begin = 0; s < w.segments; ++s) {
        const int32_t end = segment_end(w, s);
        const int32_t units = units_of(args.mode, end - begin);
        begin = end;
        float v[4] = {};
        add_units(v, from, units, cell);
        from += int64_t{units} * cell;
        hadamard128(v);
        LargeOutput(args, w, 0, args.first_block + column, s).add(row, v, kept);
    }
}

}  // namespace

void finish_exl3_large(const Exl3Product& args, int32_t tile_rows, LaunchStream stream) {
    const dim3 grid(static_cast<unsigned>(args.column_blocks),
                    static_cast<unsigned>((args.m + kWarps - 1) / kWarps));
    launch_dependent(exl3_large_end_kernel, grid, kWarps * 32, 0, stream, args, tile_rows);
}

}  // namespace quadrille::cuda
