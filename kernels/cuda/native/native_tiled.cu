// SPDX-License-Identifier: Apache-2.0
// Native bf16 products of more than a few rows (native_tiled.cuh), in the shape of a thread block
// that suits rows and columns; and the fragments that they read. Segments stay apart.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/native/native_tiled.cuh"

namespace quadrille::cuda {

namespace {

using native::kGroupRows;
using native::kGroupWords;
using native::kWarps;
using native::Rows;
using native::Shape;

constexpr int kResident = 2;  // thread blocks on a multiprocessor
constexpr int kTileGroups = kNativeTileRows / kGroupRows;

// x of the grid: tiles of rows, and of columns: those that share weights run together.
template <class Tile>
__global__ void __launch_bounds__(kWarps * 32, kResident)
    native_tiled_kernel(const __grid_constant__ NativeProduct args, int32_t row_tiles) {
    extern __shared__ __align__(128) uint4 shared[];
    if (args.table != nullptr) wait_for_earlier_kernels();  // tiles are made by one
    const auto row_tile = static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(row_tiles));
    const auto column_tile = static_cast<int32_t>(blockIdx.x / static_cast<unsigned>(row_tiles));
    Rows rows{};
    if (!native::rows_of_block(args, row_tile, Tile::kBlockRows, rows)) return;
    const Matrix& w = *rows.matrix;
    if (w.weights == nullptr || w.dtype != Dtype::bf16 ||
        int64_t{column_tile} * Tile::kBlockColumns >= w.n) {
        return wait_for_earlier_kernels();
    }
    native::TiledKernel<Tile>(args, shared, rows, column_tile).run();
}

// A warp splits 32 inputs of 16 rows; y: groups of tiles. Lane 4r + q holds of rows r and r + 8
// what mma.cuh says, with the inputs in the order of native_tile.cuh.
__global__ void __launch_bounds__(256)
    split_rows_kernel(uint4* fragments, const __grid_constant__ NativeProduct args, int64_t k) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int32_t y = static_cast<int32_t>(blockIdx.y) / kTileGroups;
    const int32_t g = static_cast<int32_t>(blockIdx.y) % kTileGroups;
    int32_t first = y * kNativeTileRows;
    int32_t count = min(kNativeTileRows, args.m - first);
    if (args.tiles != nullptr) {
        if (y >= *args.tile_count) return;
        first = args.tiles[y].first;
        count = args.tiles[y].rows;
    }
    const int64_t half_tiles = (k + 63) / 64 * 2;
    const int64_t tile = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
    if (tile >= half_tiles || g * kGroupRows >= count) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t from = tile * 32 + 8 * (lane % 4);
    const bool aligned = reinterpret_cast<uintptr_t>(args.x) % 16 == 0 && args.x_stride % 4 == 0;
    Activations<true> split[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = kGroupRows * g + 8 * r + lane / 4;
        float x[8] = {};
        if (row < count) {
            const int32_t position = first + row;
            const int64_t source = args.order == nullptr || args.slots == 0
                                       ? position
                                       : args.order[position] / args.slots;
            load_eight(x, args.x + source * args.x_stride + from, k - from, aligned);
        }
        split[r].split(x);
    }
    uint4* to = fragments + ((first / kGroupRows + g) * half_tiles + tile) * kGroupWords + lane;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const auto quad = [&](const uint32_t(&a)[4], const uint32_t(&b)[4]) {
            return make_uint4(a[2 * j], b[2 * j], a[2 * j + 1], b[2 * j + 1]);
        };
        to[64 * j] = quad(split[0].high, split[1].high);
        to[64 * j + 32] = quad(split[0].low, split[1].low);
    }
}

// 16, 32 and 64 rows x 64 columns, 64 x 128.
using Rows16 = Shape<1, 2, 4, 2, 4>;
using Rows32 = Shape<2, 2, 4, 2, 3>;
using Rows64 = Shape<1, 4, 2, 1, 4>;
using Wide64 = Shape<2, 4, 4, 1, 3>;

template <class Tile>
void launch(const NativeProduct& product, int64_t n, int64_t row_tiles, int32_t members,
            KernelSet& kernels, LaunchStream stream) {
    kernels.allow_shared(native_tiled_kernel<Tile>, Tile::kSharedBytes);
    const dim3 grid(static_cast<unsigned>(row_tiles * ceil_div(n, Tile::kBlockColumns)), 1,
                    static_cast<unsigned>(members));
    launch_dependent(native_tiled_kernel<Tile>, grid, kWarps * 32, Tile::kSharedBytes, stream,
                     product, static_cast<int32_t>(row_tiles));
}

}  // namespace

bool native_fragments(const Matrix& w) {
    if (w.dtype != Dtype::bf16 || w.k % 8 != 0 ||
        reinterpret_cast<uintptr_t>(w.weights) % 16 != 0) {
        return false;
    }
    for (int32_t s = 1; s < w.segments; ++s) {
        if (w.segment[static_cast<size_t>(s)] % 64 != 0) return false;
    }
    return true;
}

void native_tiled(const NativeProduct& product, int64_t n, int32_t tiles, int32_t members,
                  KernelSet& kernels, LaunchStream stream) {
    if (tiles == 0 || n == 0) return;
    // The largest shape moves the fewest bytes and is the fastest where there is enough for it to
    // do; else latency counts, and the smallest that is on the device all at once is.
    const auto run = [&]<class Tile>(Tile, bool last) {
        const bool tabled = product.table != nullptr;
        const int64_t row_tiles = tabled ? tiles : ceil_div(product.m, Tile::kBlockRows);
        const int64_t blocks = row_tiles * ceil_div(n, Tile::kBlockColumns) * members;
        const bool takes = !tabled || Tile::kBlockRows == kNativeTileRows;
        const bool fits = blocks <= kResident * kernels.processors() ||
                          (Tile::kBlockRows == kGroupRows && product.m <= kGroupRows);
        if (!last && !(takes && fits)) return false;
        launch<Tile>(product, n, row_tiles, members, kernels, stream);
        return true;
    };
    if (run(Rows16{}, false) || run(Rows32{}, false) || run(Rows64{}, false)) return;
    run(Wide64{}, true);
}

void split_rows(uint4* fragments, const NativeProduct& product, int64_t k, int32_t tiles,
                LaunchStream stream) {
    if (tiles == 0 || k == 0) return;
    const dim3 grid(static_cast<unsigned>(((k + 63) / 64 * 2 + 7) / 8),
                    static_cast<unsigned>(tiles * kTileGroups));
    launch_dependent(split_rows_kernel, grid, 256, 0, stream, fragments, product, k);
}

}  // namespace quadrille::cuda
