// SPDX-License-Identifier: Apache-2.0
// Native bf16 products of many rows: 256 columns x 64 rows a thread block. Weights go straight to
// registers, the split activations (made once by split_rows) through shared memory. The chains of
// MMAs are those of the streaming kernel, so the bits are the same. Segments stay apart.
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/native_tile.cuh"

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kColumns = 2;                   // tile columns of a warp
constexpr int kGroups = kNativeTileRows / 8;  // row groups
constexpr int kHalfWords = kGroups * 64;      // uint4 of 32 inputs
constexpr int kStepWords = 2 * kHalfWords;    // of 64 inputs
constexpr int kStages = 3;
constexpr int kSharedBytes = kStages * kStepWords * 16;

struct Rows {
    int32_t first;
    int32_t count;
    const Matrix* matrix;
};

__device__ bool rows_of_block(const NativeProduct& args, Rows& rows) {
    const int32_t y = static_cast<int32_t>(blockIdx.y);
    if (args.table == nullptr) {
        const int32_t first = y * kNativeTileRows;
        rows = {first, min(kNativeTileRows, args.m - first), &args.matrix};
        return true;
    }
    if (y >= *args.tile_count) return false;
    const RowTile tile = args.tiles[y];
    const Mlp* mlp = args.table + tile.expert;
    const int32_t member = args.member + static_cast<int32_t>(blockIdx.z);
    rows = {tile.first, tile.rows, member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down};
    return true;
}

class TiledKernel {
  public:
    __device__ TiledKernel(const NativeProduct& args, uint4* shared, const Rows& rows)
        : args_(args),
          shared_(shared),
          rows_(rows),
          w_(*rows.matrix),
          column_((int64_t{blockIdx.x} * kWarps + warp()) * kColumns * 16),
          aligned_(reinterpret_cast<uintptr_t>(w_.weights) % 16 == 0 && w_.k % 8 == 0),
          groups_((rows.count + 7) / 8),
          half_tiles_((w_.k + 63) / 64 * 2) {}

    __device__ void run() {
        for (int32_t s = 0; s < w_.segments; ++s) {
            float total[kColumns][kGroups][4] = {};
            segment(total, segment_inputs(w_, s));
            store(total, s);
        }
    }

  private:
    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    using Tile = Weights<Dtype::bf16>[2][kColumns];
    using Sums = float[kColumns][kGroups][4];

    __device__ void load(Tile& tile, int64_t k, int64_t last, bool aligned) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t from = k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const int64_t n = column_ + 16 * c + lane() / 4;
                const int64_t offset[2] = {n * w_.k + from, (n + 8) * w_.k + from};
                const int64_t count[2] = {n < w_.n ? last - from : 0,
                                          n + 8 < w_.n ? last - from : 0};
                tile[half][c].load(w_.weights, offset, count, aligned);
            }
        }
    }

    __device__ void fill(int64_t k, int64_t last, int stage) {
        if (k < last) {
            for (int i = static_cast<int>(threadIdx.x); i < groups_ * 128; i += kWarps * 32) {
                const int group = i / 128;
                const uint4* from = args_.fragments +
                                    ((rows_.first / 8 + group) * half_tiles_ + k / 32) * 64 +
                                    i % 128;
                copy_async_16(
                    shared_ + stage * kStepWords + i % 128 / 64 * kHalfWords + group * 64 + i % 64,
                    from);
            }
        }
        copy_async_commit();
    }

    // total += the spans of one segment, in order.
    __device__ void segment(Sums& total, InputRange range) {
        const int64_t last = range.first + range.width;
        const int64_t span = native_span(range.width);
        const bool aligned = aligned_ && range.first % 8 == 0;
        float acc[kColumns][kGroups][4] = {};
        Tile next;
        __syncthreads();  // the stages are free
        for (int s = 0; s < kStages - 1; ++s) fill(range.first + 64 * s, last, s);
        load(next, range.first, last, aligned);
        int stage = 0;
        for (int64_t k = range.first; k < last; k += 64) {
            copy_async_wait<kStages - 2>();
            __syncthreads();
            fill(k + 64 * (kStages - 1), last, (stage + kStages - 1) % kStages);
            Tile tile;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int c = 0; c < kColumns; ++c) tile[half][c] = next[half][c];
            }
            if (k + 64 < last) load(next, k + 64, last, aligned);
            step(acc, tile, stage);
            stage = (stage + 1) % kStages;
            if ((k + 64 - range.first) % span == 0 || k + 64 >= last) fold(total, acc);
        }
    }

    // The four MMAs of an accumulator (two of 16 inputs, high and low terms) wait for each other:
    // those of half the row groups and all columns go in between.
    __device__ void step(Sums& acc, const Tile& tile, int stage) const {
        constexpr int kTogether = kGroups / 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int first = 0; first < kGroups; first += kTogether) {
                if (first > 0 && first >= groups_) break;
                uint4 high[kTogether];
                uint4 low[kTogether];
#pragma unroll
                for (int g = 0; g < kTogether; ++g) {
                    const uint4* from = shared_ + stage * kStepWords + half * kHalfWords +
                                        (first + g) * 64 + lane();
                    high[g] = from[0];
                    low[g] = from[32];
                }
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    multiply_groups(acc, tile[half], high, first, j);
                    multiply_groups(acc, tile[half], low, first, j);
                }
            }
        }
    }

    // Sixteen of 32 inputs (j: which), one term, kGroups / 2 row groups. Groups without rows hold
    // whatever the stage held: their sums are never stored.
    __device__ static void multiply_groups(Sums& acc, const Weights<Dtype::bf16> (&w)[kColumns],
                                           const uint4 (&x)[kGroups / 2], int first, int j) {
#pragma unroll
        for (int g = 0; g < kGroups / 2; ++g) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const uint32_t a[4] = {w[c].row[0].pair[2 * j], w[c].row[1].pair[2 * j],
                                       w[c].row[0].pair[2 * j + 1], w[c].row[1].pair[2 * j + 1]};
                mma_bf16(acc[c][first + g], a, j == 0 ? x[g].x : x[g].z, j == 0 ? x[g].y : x[g].w);
            }
        }
    }

    __device__ static void fold(Sums& total, Sums& acc) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    total[c][g][i] += acc[c][g][i];
                    acc[c][g][i] = 0.0f;
                }
            }
        }
    }

    // Where element i of tile (c, g) goes, or nullptr outside.
    __device__ float* target(int c, int g, int i, int32_t segment) const {
        const int row = 8 * g + lane() % 4 * 2 + i % 2;
        const int64_t n = column_ + 16 * c + lane() / 4 + i / 2 * 8;
        if (row >= rows_.count || n >= w_.n) return nullptr;
        const int32_t position = rows_.first + row;
        const int64_t to = args_.scatter ? args_.order[position] : position;
        return args_.out.data + blockIdx.z * args_.out.member_stride +
               segment * args_.out.segment_stride + to * args_.out.row_stride + n;
    }

    __device__ void store(const Sums& value, int32_t segment) const {
        const bool bias = !args_.out.by_segment && w_.bias != nullptr;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* to = target(c, g, i, segment);
                    if (to == nullptr) continue;
                    const int64_t n = column_ + 16 * c + lane() / 4 + i / 2 * 8;
                    *to = bias ? value[c][g][i] + w_.bias[n] : value[c][g][i];
                }
            }
        }
    }

    const NativeProduct& args_;
    uint4* shared_;
    Rows rows_;
    const Matrix& w_;
    int64_t column_;
    bool aligned_;
    int groups_;
    int64_t half_tiles_;
};

__global__ void __launch_bounds__(kWarps * 32, 1)
    native_tiled_kernel(const __grid_constant__ NativeProduct args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ __align__(128) uint4 shared[];
    Rows rows{};
    if (!rows_of_block(args, rows)) return;
    const Matrix& w = *rows.matrix;
    if (w.weights == nullptr || w.dtype != Dtype::bf16) return;
    if (int64_t{blockIdx.x} * kWarps * kColumns * 16 >= w.n) return;
    TiledKernel(args, shared, rows).run();
}

// A warp splits 32 inputs of 8 rows.
__global__ void __launch_bounds__(256)
    split_rows_kernel(uint4* fragments, const __grid_constant__ NativeProduct args, int64_t k) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int32_t y = static_cast<int32_t>(blockIdx.y);
    int32_t first = y * kNativeTileRows;
    int32_t count = min(kNativeTileRows, args.m - first);
    if (args.tiles != nullptr) {
        if (y >= *args.tile_count) return;
        first = args.tiles[y].first;
        count = args.tiles[y].rows;
    }
    const int64_t half_tiles = (k + 63) / 64 * 2;
    const int64_t tile = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
    if (tile >= half_tiles) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t from = tile * 32 + 8 * (lane % 4);
    const bool aligned = reinterpret_cast<uintptr_t>(args.x) % 16 == 0 && args.x_stride % 4 == 0;
    for (int g = 0; g < (count + 7) / 8; ++g) {
        const int row = 8 * g + lane / 4;
        float x[8] = {};
        if (row < count) {
            const int32_t position = first + row;
            const int64_t source = args.order == nullptr || args.slots == 0
                                       ? position
                                       : args.order[position] / args.slots;
            load_eight(x, args.x + source * args.x_stride + from, k - from, aligned);
        }
        Activations<true> split;
        split.split(x);
        uint4* to = fragments + ((first / 8 + g) * half_tiles + tile) * 64 + lane;
        to[0] = make_uint4(split.high[0], split.high[1], split.high[2], split.high[3]);
        to[32] = make_uint4(split.low[0], split.low[1], split.low[2], split.low[3]);
    }
}

}  // namespace

void native_tiled(const NativeProduct& product, int64_t n, int32_t tiles, int32_t members,
                  KernelSet& kernels, LaunchStream stream) {
    if (tiles == 0 || n == 0) return;
    kernels.allow_shared(native_tiled_kernel, kSharedBytes);
    const dim3 grid(static_cast<unsigned>((n + 255) / 256), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(members));
    launch_dependent(native_tiled_kernel, grid, kWarps * 32, kSharedBytes, stream, product);
}

void split_rows(uint4* fragments, const NativeProduct& product, int64_t k, int32_t tiles,
                LaunchStream stream) {
    if (tiles == 0 || k == 0) return;
    const dim3 grid(static_cast<unsigned>(((k + 63) / 64 * 2 + 7) / 8),
                    static_cast<unsigned>(tiles));
    launch_dependent(split_rows_kernel, grid, 256, 0, stream, fragments, product, k);
}

}  // namespace quadrille::cuda
