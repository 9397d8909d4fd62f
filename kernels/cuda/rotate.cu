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
    const int32_t* from = &args.tiles[y].expert;
    const RowTile tile = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
    if (tile.expert < 0) return false;
    const Mlp* mlp = args.table + tile.expert;
    const int32_t member = args.member + static_cast<int32_t>(blockIdx.z) % args.members;
    rows = {tile.first, tile.rows, member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down};
    return true;
}

// Inputs 4l .. 4l+3 of a row, zero behind the last; any address.
__device__ __forceinline__ void load_four(float (&v)[4], const float* x, int64_t left) {
    if (left >= 4 && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
        const float4 in = __ldcg(reinterpret_cast<const float4*>(x));
        v[0] = in.x;
        v[1] = in.y;
        v[2] = in.z;
        v[3] = in.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = i < left ? __ldcg(x + i) : 0.0f;
}

// Channels 4l .. 4l+3; any address that halves may have.
__device__ __forceinline__ uint2 load_scales(const F16* suh) {
    if (reinterpret_cast<uintptr_t>(suh) % 8 == 0) return *reinterpret_cast<const uint2*>(suh);
    const auto* half = reinterpret_cast<const uint16_t*>(suh);
    return {half[0] | uint32_t{half[1]} << 16, half[2] | uint32_t{half[3]} << 16};
}

__global__ void __launch_bounds__(kWarps * 32)
    rotate_kernel(const __grid_constant__ Rotation args) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t block = blockIdx.x;
    const int64_t channel = block * exl3::kBlock + 4 * lane;
    const InputRotation rotation(lane);
    uint2 scales{};
    if (args.table == nullptr) {
        let_next_kernel_start();
        scales = load_scales(args.matrix.suh + channel);  // on its way while we wait
    }
    if (!args.tiles_early) wait_for_earlier_kernels();
    Rows rows{};
    if (!rows_of_block(args, rows)) return wait_for_earlier_kernels();
    const Matrix& w = *rows.matrix;
    // A grid row (z) takes 8 positions of a tile, a warp one of them.
    const int r =
        8 * (static_cast<int>(blockIdx.z) / args.members) + static_cast<int>(threadIdx.x) / 32;
    if (w.trellis == nullptr || block * exl3::kBlock >= w.k_padded ||
        r >= (rows.count + 7) / 8 * 8) {
        return wait_for_earlier_kernels();
    }
    if (args.table != nullptr) scales = load_scales(w.suh + channel);
    const int32_t position = rows.first + r;
    const bool ordered = args.order != nullptr && args.up == nullptr;
    if (!ordered) {
        wait_for_earlier_kernels();
        let_next_kernel_start();  // of experts not before: it may read tiles early
    }
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (r < rows.count) {
        const int64_t row = ordered ? __ldcg(args.order + position) / args.slots : position;
        load_four(v, args.x + row * args.x_stride + channel, w.k - channel);
        if (args.up != nullptr) {
            float up[4];
            load_four(up, args.up + row * args.x_stride + channel, w.k - channel);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = swiglu(v[i], up[i], args.limit);
        }
    }
    wait_for_earlier_kernels();
    let_next_kernel_start();
    uint32_t pair[2];
    rotation(pair, v, scales);
    const int64_t tile = position / 8 * args.out_tiles + block * 8 + InputRotation::tile(lane);
    auto* to = reinterpret_cast<uint32_t*>(args.out + blockIdx.z % args.members * args.out_stride +
                                           tile * 32) +
               position % 8 * 8 + InputRotation::word(lane);
    to[0] = pair[0];
    to[64] = pair[1];
}

}  // namespace

void rotate(Rotation rotation, int64_t k_padded, int32_t tiles, int32_t members,
            LaunchStream stream) {
    if (tiles == 0) return;
    rotation.members = members;
    const dim3 grid(static_cast<unsigned>(k_padded / exl3::kBlock), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(members * ((rotation.tile_rows + 7) / 8)));
    launch_dependent(rotate_kernel, grid, kWarps * 32, 0, stream, rotation);
}

}  // namespace quadrille::cuda
