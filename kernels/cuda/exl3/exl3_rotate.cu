// SPDX-License-Identifier: Apache-2.0
// Rotates inputs: a warp takes one block of 128 of them, of several row positions of a tile, for
// one matrix or for two of an expert. Reads 4 bytes of an input and writes 2 for each matrix.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3/exl3_hadamard.cuh"
#include "kernels/cuda/exl3/exl3_rotate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

#include <cuda_fp16.h>

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kBatch = 4;      // rows whose loads are under way together
constexpr int kProcessor = 3;  // thread blocks that are on a multiprocessor together
constexpr int kFew = 40;       // warps of a multiprocessor, up to which each takes a row

// Whose inputs, for what: rows of x for a matrix; rows of x, found by `order`, for gate and up of
// an expert; swiglu(x, up) for its down.
enum class Inputs { plain, hidden, gated };

// How a launch is cut. Part p of a tile is its batches p, p + parts ..: of the rows that a short
// tile has, every part gets as many.
struct RotateArgs {
    Rotation of;
    int32_t block_shift;  // a thread block takes 2^block_shift blocks of inputs, of several parts
    int32_t parts;
    uint32_t group;  // uint2 of 8 rows
    bool vectors;    // rows lie where four inputs may be loaded at once
};

// A warp's share.
struct Share {
    int lane;
    int block;      // of inputs
    int part;       // of the tile
    int32_t first;  // the lane's first channel

    __device__ __forceinline__ explicit Share(const RotateArgs& args) {
        const unsigned warp = threadIdx.x / 32;
        lane = static_cast<int>(threadIdx.x % 32);
        block = static_cast<int>((blockIdx.x << args.block_shift) +
                                 (warp & ((1u << args.block_shift) - 1)));
        part = static_cast<int>((blockIdx.z * kWarps + warp) >> args.block_shift);
        first = block * exl3::kBlock + 4 * lane;
    }
    // The lane's results of a position go here; those of the next input tile 64 words behind.
    __device__ __forceinline__ uint32_t* place(const RotateArgs& args, int32_t position) const {
        const auto at = static_cast<uint32_t>(position);
        const auto tile = static_cast<uint32_t>(block * 8 + InputRotation::tile(lane));
        auto* from = args.of.out + uint64_t{at / 8} * args.group + tile * 32 + at % 8 * 4;
        return reinterpret_cast<uint32_t*>(from) + InputRotation::word(lane);
    }
};

// Channels 4l .. 4l+3; any address that halves may have.
__device__ __forceinline__ uint2 load_scales(const F16* suh) {
    if (reinterpret_cast<uintptr_t>(suh) % 8 == 0) return *reinterpret_cast<const uint2*>(suh);
    const auto* half = reinterpret_cast<const uint16_t*>(suh);
    return {half[0] | uint32_t{half[1]} << 16, half[2] | uint32_t{half[3]} << 16};
}

// Four inputs of the first `count` rows, zero behind the last of `left`.
template <int kRows>
__device__ __forceinline__ void load_rows(float (&v)[kRows][4], const float* const (&from)[kRows],
                                          int count, int32_t left, bool vectors) {
    if (vectors && left >= 4) {
#pragma unroll
        for (int t = 0; t < kRows; ++t) {
            if (t >= count) continue;
            const float4 in = __ldcg(reinterpret_cast<const float4*>(from[t]));
            v[t][0] = in.x;
            v[t][1] = in.y;
            v[t][2] = in.z;
            v[t][3] = in.w;
        }
        return;
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[t][i] = t < count && i < left ? __ldcg(from[t] + i) : 0.0f;
    }
}

// A row of a matrix to a warp, which waits for nothing but its inputs.
__global__ void __launch_bounds__(kWarps * 32)
    rotate_few_kernel(const __grid_constant__ RotateArgs args) {
    let_next_kernel_start();
    const Rotation& of = args.of;
    const Share share(args);
    const int32_t position = share.part;
    if (position >= of.m || share.block * exl3::kBlock >= of.matrix.k_padded) {
        return wait_for_earlier_kernels();
    }
    const uint2 scales = load_scales(of.matrix.suh + share.first);  // on its way while we wait
    const InputRotation rotation(share.lane);
    uint32_t* to = share.place(args, position);
    const float* const from[1] = {of.x + position * of.x_stride + share.first};
    wait_for_earlier_kernels();
    float v[1][4];
    load_rows(v, from, 1, static_cast<int32_t>(of.matrix.k) - share.first, args.vectors);
    uint32_t pair[2];
    rotation(pair, v[0], scales);
    to[0] = pair[0];
    to[64] = pair[1];
}

// The tile of a thread block; none behind the last.
template <Inputs kInputs>
__device__ __forceinline__ RowTile tile_of_block(const Rotation& of) {
    const auto y = static_cast<int32_t>(blockIdx.y);
    if constexpr (kInputs == Inputs::plain) {
        const int32_t first = y * of.tile_rows;
        return {0, first, min(of.tile_rows, of.m - first)};
    }
    const int32_t* from = &of.tiles[y].expert;
    return {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
}

// The matrices whose inputs a warp rotates, of a lane: its scales, and where its results go for the
// first 8 rows of the tile. left: inputs from the lane's first on.
template <int kMembers>
struct Targets {
    uint2 scales[kMembers];
    uint32_t* out[kMembers];
    int32_t left;

    // False: there is none. In the place of one that is not there stands the other one, twice.
    __device__ __forceinline__ bool find(const RotateArgs& args, const Share& share,
                                         const RowTile& tile, const Matrix* const (&w)[kMembers]) {
        bool there[kMembers];
#pragma unroll
        for (int m = 0; m < kMembers; ++m) {
            there[m] = w[m]->trellis != nullptr && share.block * exl3::kBlock < w[m]->k_padded;
            scales[m] = there[m] ? load_scales(w[m]->suh + share.first) : uint2{};
        }
        left = static_cast<int32_t>(w[0]->k) - share.first;
#pragma unroll
        for (int m = 0; m < kMembers; ++m) {
            if (!there[m]) scales[m] = scales[kMembers - 1 - m];
            out[m] =
                share.place(args, tile.first) + ((m == 1) == there[m] ? 2 * args.of.out_stride : 0);
        }
        return there[0] || there[kMembers - 1];
    }
};

template <Inputs kInputs, int kMembers>
__device__ __forceinline__ bool find_targets(Targets<kMembers>& to, const RotateArgs& args,
                                             const Share& share, const RowTile& tile) {
    if constexpr (kInputs == Inputs::plain) {
        return to.find(args, share, tile, {&args.of.matrix});
    } else {
        const Mlp& mlp = args.of.table[tile.expert];
        if constexpr (kInputs == Inputs::gated) return to.find(args, share, tile, {&mlp.down});
        if constexpr (kInputs == Inputs::hidden) {
            return to.find(args, share, tile, {&mlp.gate, &mlp.up});
        }
    }
}

// The inputs of `count` positions from `position` on. row: of a hidden one, as lane `source` and
// those behind it have it.
template <Inputs kInputs>
__device__ __forceinline__ void load_batch(float (&v)[kBatch][4], const RotateArgs& args,
                                           const Share& share, int64_t row, int source,
                                           int32_t position, int count, int32_t left) {
    const Rotation& of = args.of;
    const float* from[kBatch];
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
        from[t] = of.x + share.first +
                  (kInputs == Inputs::hidden ? __shfl_sync(0xffffffffu, row, source + t)
                                             : (position + t) * of.x_stride);
    }
    load_rows(v, from, count, left, args.vectors);
    if constexpr (kInputs == Inputs::gated) {
        float up[kBatch][4];
#pragma unroll
        for (int t = 0; t < kBatch; ++t) from[t] += of.up - of.x;
        load_rows(up, from, count, left, args.vectors);
#pragma unroll
        for (int t = 0; t < kBatch; ++t) {
            if (t >= count) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) v[t][i] = swiglu(v[t][i], up[t][i], of.limit);
        }
    }
}

// Nothing is written for positions that have no row: what the tensor core makes of what lies there
// stays in columns of their own.
template <Inputs kInputs>
__global__ void __launch_bounds__(kWarps * 32, kProcessor)
    rotate_kernel(const __grid_constant__ RotateArgs args) {
    constexpr int kMembers = kInputs == Inputs::hidden ? 2 : 1;
    const Rotation& of = args.of;
    const Share share(args);
    if (kInputs == Inputs::plain) let_next_kernel_start();
    if (!of.tiles_early) wait_for_earlier_kernels();
    const RowTile tile = tile_of_block<kInputs>(of);
    if (tile.expert < 0 || share.part * kBatch >= tile.rows) return wait_for_earlier_kernels();
    int64_t row = 0;  // of the lane's position: batch lane / kBatch of the part's
    if constexpr (kInputs == Inputs::hidden) {
        const int r =
            kBatch * (share.part + share.lane / kBatch * args.parts) + share.lane % kBatch;
        if (r < tile.rows) row = __ldcg(of.order + tile.first + r) / of.slots * of.x_stride;
    }
    Targets<kMembers> to;
    if (!find_targets<kInputs>(to, args, share, tile)) return wait_for_earlier_kernels();
    const InputRotation rotation(share.lane);
    // What earlier kernels have left; of a hidden row not before the first is loaded: it may be
    // there early, as may the tiles.
    if (kInputs != Inputs::hidden) {
        wait_for_earlier_kernels();
        let_next_kernel_start();
    }
#pragma unroll 1
    for (int first = kBatch * share.part, source = 0; first < tile.rows;
         first += kBatch * args.parts, source += kBatch) {
        const int count = tile.rows - first;
        float v[kBatch][4];
        load_batch<kInputs>(v, args, share, row, source, tile.first + first, count, to.left);
        if (source == 0) {
            wait_for_earlier_kernels();
            let_next_kernel_start();
        }
        // The batch lies in one half of a group of 8 rows.
        const auto group = uint64_t{static_cast<uint32_t>(first) / 8};
        const uint64_t half = group * args.group * 2 + first % 8 * 8;
#pragma unroll
        for (int t = 0; t < kBatch; ++t) {
            if (t >= count) break;
#pragma unroll
            for (int m = 0; m < kMembers; ++m) {
                uint32_t pair[2];
                rotation(pair, v[t], to.scales[m]);
                uint32_t* out = to.out[m] + half + t * 8;
                out[0] = pair[0];
                out[64] = pair[1];
            }
        }
    }
}

}  // namespace

void rotate(const Rotation& rotation, int64_t k_padded, int32_t tiles, int32_t processors,
            LaunchStream stream) {
    if (tiles == 0 || k_padded == 0) return;
    RotateArgs args{};
    args.of = rotation;
    args.group = static_cast<uint32_t>(rotation.out_tiles * 32);
    args.vectors = loads_four(rotation.x, rotation.x_stride) &&
                   (rotation.up == nullptr || loads_four(rotation.up, rotation.x_stride));
    const int64_t blocks = k_padded / exl3::kBlock;
    while ((1 << args.block_shift) < std::min<int64_t>(blocks, kWarps)) ++args.block_shift;
    const int64_t columns = ceil_div(blocks, 1 << args.block_shift);
    const int64_t together = kWarps >> args.block_shift;  // parts of a thread block
    if (rotation.table == nullptr && rotation.m * blocks <= int64_t{processors} * kFew) {
        const dim3 grid(static_cast<unsigned>(columns), 1,
                        static_cast<unsigned>(ceil_div(rotation.m, together)));
        return launch_dependent(rotate_few_kernel, grid, kWarps * 32, 0, stream, args);
    }
    const int64_t room = int64_t{processors} * kProcessor;
    // A batch to a part where there are few, in tiles about as full as all of them are; else so
    // many thread blocks that they end together. A warp knows the rows of 32 positions.
    const int64_t batches = ceil_div(ceil_div(rotation.m, tiles), kBatch);
    int64_t depth = std::min(ceil_div(batches, together), ceil_div(4 * room, tiles * columns));
    depth = std::max(depth, ceil_div(rotation.tile_rows, 32 * together));
    args.parts = static_cast<int32_t>(depth * together);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(depth));
    const auto kernel = rotation.table == nullptr ? rotate_kernel<Inputs::plain>
                        : rotation.up == nullptr  ? rotate_kernel<Inputs::hidden>
                                                  : rotate_kernel<Inputs::gated>;
    launch_dependent(kernel, grid, kWarps * 32, 0, stream, args);
}

}  // namespace quadrille::cuda
