// SPDX-License-Identifier: Apache-2.0
// A warp rotates one block of 128 inputs of one row: reads 4 bytes and writes 2 per input.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/rotate.h"
#include "kernels/cuda/swiglu.cuh"

#include <cuda_fp16.h>

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;

struct Rows {
    int32_t first;
    int32_t count;
    const Matrix* matrix;
};

__device__ bool rows_of_block(const Rotation& args, Rows& rows) {
    const int32_t y = static_cast<int32_t>(blockIdx.y);
    if (args.table == nullptr) {
        const int32_t first = y * args.tile_rows;
        rows = {first, min(args.tile_rows, args.m - first), &args.matrix};
        return true;
    }
    if (y >= *args.tile_count) return false;
    const RowTile tile = args.tiles[y];
    const Mlp* mlp = args.table + tile.expert;
    const int32_t member = args.member + static_cast<int32_t>(blockIdx.z) % args.members;
    rows = {tile.first, tile.rows, member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down};
    return true;
}

__global__ void __launch_bounds__(kWarps * 32)
    rotate_kernel(const __grid_constant__ Rotation args) {
    let_next_kernel_start();
    wait_for_earlier_kernels();
    Rows rows{};
    if (!rows_of_block(args, rows)) return;
    const Matrix& w = *rows.matrix;
    const int64_t block = blockIdx.x;
    if (w.trellis == nullptr || block * exl3::kBlock >= w.k_padded) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t channel = block * exl3::kBlock + 4 * lane;
    // A grid row (z) takes 8 positions of a tile, a warp one of them.
    const int r =
        8 * (static_cast<int>(blockIdx.z) / args.members) + static_cast<int>(threadIdx.x) / 32;
    if (r >= (rows.count + 7) / 8 * 8) return;
    float suh[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        suh[i] = __half2float(reinterpret_cast<const __half*>(w.suh)[channel + i]);
    }
    const int32_t position = rows.first + r;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (r < rows.count) {
        const int64_t row = args.order == nullptr || args.up != nullptr
                                ? position
                                : args.order[position] / args.slots;
        const float* x = args.x + row * args.x_stride + channel;
        const float* up = args.up == nullptr ? nullptr : args.up + row * args.x_stride + channel;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (channel + i >= w.k) continue;
            const float value = up == nullptr ? x[i] : swiglu(x[i], up[i], args.limit);
            v[i] = __fmul_rn(value, suh[i]);  // the product kernel's bits, see exl3_product.cuh
        }
    }
    hadamard128(v);
    const __half2 low = __floats2half2_rn(v[0], v[1]);
    const __half2 high = __floats2half2_rn(v[2], v[3]);
    // Inputs 4l .. 4l+3 are two pairs of tile l/4: pair (k, k+1) is word k/8 of lane k%8/2.
    auto* out =
        reinterpret_cast<uint32_t*>(args.out + blockIdx.z % args.members * args.out_stride +
                                    (position / 8 * args.out_tiles + block * 8 + lane / 4) * 32);
    uint32_t* to = out + (position % 8 * 4 + 2 * (lane % 2)) * 2 + lane % 4 / 2;
    to[0] = *reinterpret_cast<const uint32_t*>(&low);
    to[2] = *reinterpret_cast<const uint32_t*>(&high);
}

}  // namespace

void rotate(Rotation rotation, int64_t k_padded, int32_t tiles, int32_t members, bool overlap,
            cudaStream_t stream) {
    if (tiles == 0) return;
    rotation.members = members;
    const dim3 grid(static_cast<unsigned>(k_padded / exl3::kBlock), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(members * ((rotation.tile_rows + 7) / 8)));
    launch_dependent(rotate_kernel, grid, kWarps * 32, 0, overlap, stream, rotation);
}

}  // namespace quadrille::cuda
