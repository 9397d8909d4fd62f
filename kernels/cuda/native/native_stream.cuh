// SPDX-License-Identifier: Apache-2.0
// The streaming kernel of native products, up to 16 rows a tile: it reads every weight once, 16
// bytes a lane, straight into registers; eight warps take the eight spans of a segment. Bound:
// bytes of the weights / read bandwidth. A thread block goes on to further columns without letting
// its loads run dry, and starts loading weights before the kernel ahead of it has ended. The
// products of a group are one launch: their column tiles follow each other, so that small matrices
// cost no launch of their own.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/native/native_tile.cuh"

#include <type_traits>

namespace quadrille::cuda::stream {

inline constexpr int kWarps = 8;

// Work: a NativeProduct or a NativeGroup. kFew: no more column tiles than multiprocessors: latency
// counts, and registers hold all that a warp reads.
template <class Work, Dtype kDtype, int kGroups, int kColumns, bool kFew>
class StreamKernel {
  public:
    static constexpr bool kGrouped = std::is_same_v<Work, NativeGroup>;
    static constexpr bool kBf16 = kDtype == Dtype::bf16;
    static constexpr int kOutputs = 16 * kColumns;
    static constexpr int kRows = 8 * kGroups;
    // Steps of 64 inputs whose weights are under way: 4 to 8 KB a warp, as registers allow.
    static constexpr int kDepth = kFew                   ? (kDtype == Dtype::f32 ? 4 : 8)
                                  : kDtype == Dtype::f32 ? 2 / kColumns
                                  : kColumns == 1        ? 3
                                                         : 2;
    static constexpr int kAhead = kFew ? 2 : 1;  // steps whose inputs are, beside those at hand

    // Partial sums of two units in turn: one barrier a unit.
    struct Shared {
        float part[2][kWarps][kRows][kOutputs + 1];
    };

    __device__ StreamKernel(const Work& args, Shared& shared) : args_(args), shared_(shared) {}

    __device__ void run() {
        let_next_kernel_start();
        if (tabled()) wait_for_earlier_kernels();  // tiles are made by one
        if (!locate()) return;
        Cursor ahead = begin();
        Tile ring[kDepth];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) next(ring[i], ahead);
        if (!tabled()) wait_for_earlier_kernels();  // the weights are under way
        Cursor here = begin();
        Cursor coming = here;
        Inputs x[kAhead] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            load_inputs(x[i], coming);
            advance(coming);
        }
        float acc[kColumns][kGroups][4] = {};
        while (here.tile < tiles_) {
#pragma unroll
            for (int i = 0; i < kDepth; ++i) {
                if (here.tile >= tiles_) break;
                const Cursor now = here;
                advance(here);
                Inputs last{};
                load_inputs(last, kAhead == 1 ? here : coming);
                if (kAhead > 1) advance(coming);
                accumulate(acc, ring[i], x[0]);
                next(ring[i], ahead);
                if (here.segment != now.segment || here.tile != now.tile) {
                    finish(acc, now);
                }
#pragma unroll
                for (int a = 0; a + 1 < kAhead; ++a) x[a] = x[a + 1];
                x[kAhead - 1] = last;
            }
        }
    }

  private:
    static constexpr int kPerThread = (kRows * kOutputs + kWarps * 32 - 1) / (kWarps * 32);

    static __device__ int warp() {
        return static_cast<int>(threadIdx.x) / 32;
    }
    static __device__ int lane() {
        return static_cast<int>(threadIdx.x) % 32;
    }

    __device__ bool tabled() const {
        if constexpr (kGrouped) {
            return false;
        } else {
            return args_.table != nullptr;
        }
    }

    __device__ bool locate() {
        // Row tiles run along x: blocks that share weights run together.
        const int32_t y = static_cast<int32_t>(blockIdx.x);
        first_ = y * kRows;
        rows_ = min(kRows, args_.m - first_);
        if constexpr (kGrouped) {
            tiles_ = args_.tiles;
        } else {
            if (!locate_matrix(y)) return false;
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            // Rows that do not exist take another's inputs: their sums are not stored.
            const int row = min(8 * g + lane() / 4, rows_ - 1);
            row_[g] = source(first_ + row);
        }
        return true;
    }
    __device__ bool locate_matrix(int32_t y) {
        w_ = &args_.matrix;
        if (args_.table != nullptr) {
            if (y >= *args_.tile_count) return false;
            const RowTile tile = args_.tiles[y];
            first_ = tile.first;
            rows_ = tile.rows;
            const Mlp* mlp = args_.table + tile.expert;
            const int32_t member = args_.member + static_cast<int32_t>(blockIdx.z);
            w_ = member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down;
        }
        const auto n = static_cast<int32_t>(w_->n);
        tiles_ = (n + kOutputs - 1) / kOutputs;
        if (w_->weights == nullptr || w_->dtype != kDtype ||
            static_cast<int32_t>(blockIdx.y) >= tiles_) {
            return false;
        }
        const auto address = reinterpret_cast<uintptr_t>(w_->weights);
        aligned_ = address % 16 == 0 && w_->k % (16 / size_of(kDtype)) == 0;
        x_aligned_ = reinterpret_cast<uintptr_t>(args_.x) % 16 == 0 && args_.x_stride % 4 == 0;
        return true;
    }
    __device__ int64_t source(int32_t position) const {
        if constexpr (kGrouped) {
            return position;
        } else {
            return args_.order == nullptr || args_.slots == 0 ? position
                                                              : args_.order[position] / args_.slots;
        }
    }

    // The place of a warp: 64 inputs from k of its span [.., last) of a segment, for the columns
    // from `column` of a matrix (of `member` in a group). A span without inputs is one step of
    // zeros.
    struct Cursor {
        int32_t tile;  // of columns, over all members
        int32_t member;
        int32_t column;
        int32_t k;
        int32_t last;
        int32_t segment;
    };

    __device__ void enter(Cursor& at) const {
        InputRange range{0, 0};
        if constexpr (kGrouped) {
            range.width = args_.k;
        } else {
            range = segment_inputs(*w_, at.segment);
        }
        const int64_t span = native_span(range.width);
        at.k = static_cast<int32_t>(range.first + min(warp() * span, range.width));
        at.last = static_cast<int32_t>(range.first + min((warp() + 1) * span, range.width));
    }
    // The matrix and column of the tile, which no earlier member holds.
    __device__ void place(Cursor& at) const {
        if constexpr (kGrouped) {
            if (at.tile >= tiles_) return;
            while (at.tile >= args_.members[at.member].end_tile) ++at.member;
            const NativeMember& member = args_.members[at.member];
            at.column = (at.tile - member.first_tile) * kOutputs;
        } else {
            at.column = at.tile * kOutputs;
        }
    }
    __device__ Cursor begin() const {
        Cursor at{static_cast<int32_t>(blockIdx.y), 0, 0, 0, 0, 0};
        place(at);
        enter(at);
        return at;
    }
    __device__ void advance(Cursor& at) const {
        at.k += 64;
        if (at.k < at.last) return;
        if (kGrouped || ++at.segment == w_->segments) {
            at.segment = 0;
            at.tile += static_cast<int32_t>(gridDim.y);
            place(at);
        }
        enter(at);
    }

    __device__ int32_t outputs(const Cursor& at) const {
        if constexpr (kGrouped) {
            return args_.members[at.member].n;
        } else {
            return static_cast<int32_t>(w_->n);
        }
    }
    __device__ int64_t inputs() const {
        if constexpr (kGrouped) {
            return args_.k;
        } else {
            return w_->k;
        }
    }

    using Tile = Weights<kDtype>[2][kColumns];  // 64 inputs
    struct Inputs {
        float value[2][kGroups][8];
    };

    // The weights at `at`, which goes on.
    __device__ void next(Tile& tile, Cursor& at) const {
        if (at.tile >= tiles_) return;
        const bool aligned = kGrouped || (aligned_ && at.k % (16 / size_of(kDtype)) == 0);
        const void* weights = nullptr;
        if constexpr (kGrouped) {
            weights = args_.members[at.member].weights;
        } else {
            weights = w_->weights;
        }
        const int32_t outputs = this->outputs(at);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t from = at.k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const int32_t n = at.column + 16 * c + lane() / 4;
                const int64_t offset[2] = {n * inputs() + from, (n + 8) * inputs() + from};
                const int64_t count[2] = {n < outputs ? at.last - from : 0,
                                          n + 8 < outputs ? at.last - from : 0};
                tile[half][c].load(weights, offset, count, aligned);
            }
        }
        advance(at);
    }

    __device__ void load_inputs(Inputs& x, const Cursor& at) const {
        if (at.tile >= tiles_) return;
        const bool aligned = kGrouped || (x_aligned_ && at.k % 4 == 0);
        const float* rows = nullptr;
        int64_t stride = 0;
        if constexpr (kGrouped) {
            rows = args_.members[at.member].x;
            stride = args_.members[at.member].x_stride;
        } else {
            rows = args_.x;
            stride = args_.x_stride;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t from = at.k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                load_eight(x.value[half][g], rows + row_[g] * stride + from, at.last - from,
                           aligned);
            }
        }
    }

    // acc += 64 inputs.
    __device__ void accumulate(float (&acc)[kColumns][kGroups][4], const Tile& tile,
                               const Inputs& x) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                Activations<kBf16> activations;
                activations.split(x.value[half][g]);
#pragma unroll
                for (int c = 0; c < kColumns; ++c) multiply(acc[c][g], tile[half][c], activations);
            }
        }
    }

    // The eight spans of a segment are in: adds them, and at the last segment stores.
    __device__ void finish(float (&acc)[kColumns][kGroups][4], const Cursor& at) {
        auto& part = shared_.part[unit_ % 2];
        ++unit_;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    part[warp()][8 * g + lane() % 4 * 2 + i % 2][16 * c + lane() / 4 + i / 2 * 8] =
                        acc[c][g][i];
                    acc[c][g][i] = 0.0f;
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            if (element(i) >= kRows * kOutputs) continue;
            float value = 0.0f;
            for (int p = 0; p < kWarps; ++p) {
                value += part[p][element(i) / kOutputs][element(i) % kOutputs];
            }
            if constexpr (kGrouped) {
                store_member(i, value, at);
            } else if (args_.out.by_segment) {
                store(i, value, at, false);
            } else {
                add_segment(i, value, at);
            }
        }
    }

    // The tree (s0 + s1) + (s2 + s3) over the segments.
    __device__ void add_segment(int i, float value, const Cursor& at) {
        const float first = at.segment < 2 ? kept_[0][i] : kept_[1][i];
        const float pair = at.segment % 2 == 0 ? value : first + value;
        if (at.segment < 2) {
            kept_[0][i] = pair;
        } else {
            kept_[1][i] = pair;
        }
        if (at.segment + 1 < w_->segments) return;
        store(i, w_->segments == 4 ? kept_[0][i] + kept_[1][i] : kept_[0][i], at, true);
    }

    __device__ int element(int i) const {
        return static_cast<int>(threadIdx.x) + i * kWarps * 32;
    }

    __device__ void store(int i, float value, const Cursor& at, bool whole) const {
        const int row = element(i) / kOutputs;
        const int32_t n = at.column + element(i) % kOutputs;
        if (row >= rows_ || n >= w_->n) return;
        const int32_t position = first_ + row;
        const int64_t target = args_.scatter ? args_.order[position] : position;
        float* out = args_.out.data + blockIdx.z * args_.out.member_stride +
                     (whole ? 0 : at.segment) * args_.out.segment_stride +
                     target * args_.out.row_stride + n;
        *out = whole && w_->bias != nullptr ? value + w_->bias[n] : value;
    }

    __device__ void store_member(int i, float value, const Cursor& at) const {
        const NativeMember& member = args_.members[at.member];
        const int row = element(i) / kOutputs;
        const int32_t n = at.column + element(i) % kOutputs;
        if (row >= rows_ || n >= member.n) return;
        member.out[(first_ + row) * member.out_stride + n] =
            member.bias != nullptr ? value + member.bias[n] : value;
    }

    const Work& args_;
    Shared& shared_;
    const Matrix* w_ = nullptr;
    int32_t first_ = 0;
    int32_t rows_ = 0;
    int32_t tiles_ = 0;  // of columns
    bool aligned_ = false;
    bool x_aligned_ = false;
    uint32_t unit_ = 0;
    float kept_[2][kPerThread] = {};
    int64_t row_[kGroups];  // of the inputs
};

// Thread blocks that a multiprocessor holds.
constexpr int resident(int groups, int columns, bool few) {
    return groups * columns == 1 && !few ? 2 : 1;
}

template <class Work, Dtype kDtype, int kGroups, int kColumns, bool kFew>
__global__ void __launch_bounds__(kWarps * 32, resident(kGroups, kColumns, kFew))
    native_stream_kernel(const __grid_constant__ Work args) {
    using Kernel = StreamKernel<Work, kDtype, kGroups, kColumns, kFew>;
    __shared__ typename Kernel::Shared shared;
    Kernel(args, shared).run();
}

}  // namespace quadrille::cuda::stream
