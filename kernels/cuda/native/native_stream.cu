// SPDX-License-Identifier: Apache-2.0
// Native products of up to 16 rows a tile: reads every weight once, 16 bytes a lane, straight into
// registers; eight warps take the eight spans of a segment. Bound: bytes of the weights / read
// bandwidth. A thread block goes on to further columns without letting its loads run dry, and
// starts loading weights before the kernel ahead of it has ended.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/native/native_tile.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;

// kFew: no more column tiles than multiprocessors: latency counts, and registers hold all that a
// warp reads.
template <Dtype kDtype, int kGroups, int kColumns, bool kFew>
class StreamKernel {
  public:
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

    __device__ StreamKernel(const NativeProduct& args, Shared& shared)
        : args_(args), shared_(shared) {}

    __device__ void run() {
        let_next_kernel_start();
        if (args_.table != nullptr) wait_for_earlier_kernels();  // tiles are made by one
        if (!locate()) return;
        Cursor ahead = begin();
        Tile ring[kDepth];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) next(ring[i], ahead);
        if (args_.table == nullptr) wait_for_earlier_kernels();  // the weights are under way
        Cursor here = begin();
        Cursor coming = here;
        Inputs x[kAhead] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            load_inputs(x[i], coming);
            advance(coming);
        }
        float acc[kColumns][kGroups][4] = {};
        while (here.column < n_) {
#pragma unroll
            for (int i = 0; i < kDepth; ++i) {
                if (here.column >= n_) break;
                const Cursor now = here;
                advance(here);
                Inputs last{};
                load_inputs(last, kAhead == 1 ? here : coming);
                if (kAhead > 1) advance(coming);
                accumulate(acc, ring[i], x[0]);
                next(ring[i], ahead);
                if (here.segment != now.segment || here.column != now.column) {
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

    __device__ bool locate() {
        // Row tiles run along x: blocks that share weights run together.
        const int32_t y = static_cast<int32_t>(blockIdx.x);
        w_ = &args_.matrix;
        first_ = y * kRows;
        rows_ = min(kRows, args_.m - first_);
        if (args_.table != nullptr) {
            if (y >= *args_.tile_count) return false;
            const RowTile tile = args_.tiles[y];
            first_ = tile.first;
            rows_ = tile.rows;
            const Mlp* mlp = args_.table + tile.expert;
            const int32_t member = args_.member + static_cast<int32_t>(blockIdx.z);
            w_ = member == 0 ? &mlp->gate : member == 1 ? &mlp->up : &mlp->down;
        }
        column_ = static_cast<int32_t>(blockIdx.y) * kOutputs;
        n_ = static_cast<int32_t>(w_->n);
        if (w_->weights == nullptr || w_->dtype != kDtype || column_ >= n_) return false;
        const auto address = reinterpret_cast<uintptr_t>(w_->weights);
        aligned_ = address % 16 == 0 && w_->k % (16 / size_of(kDtype)) == 0;
        stride_ = static_cast<int32_t>(gridDim.y) * kOutputs;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int row = 8 * g + lane() / 4;
            // Rows that do not exist take another's inputs: their sums are not stored.
            x_[g] = args_.x + source(first_ + min(row, rows_ - 1)) * args_.x_stride;
        }
        x_aligned_ = reinterpret_cast<uintptr_t>(args_.x) % 16 == 0 && args_.x_stride % 4 == 0;
        return true;
    }
    __device__ int64_t source(int32_t position) const {
        return args_.order == nullptr || args_.slots == 0 ? position
                                                          : args_.order[position] / args_.slots;
    }

    // The place of a warp: 64 inputs from k of its span [.., last) of a segment, for the columns
    // from `column`. A span without inputs is one step of zeros.
    struct Cursor {
        int32_t column;
        int32_t k;
        int32_t last;
        int32_t segment;
    };

    __device__ void enter(Cursor& at) const {
        const InputRange range = segment_inputs(*w_, at.segment);
        const int64_t span = native_span(range.width);
        at.k = static_cast<int32_t>(range.first + min(warp() * span, range.width));
        at.last = static_cast<int32_t>(range.first + min((warp() + 1) * span, range.width));
    }
    __device__ Cursor begin() const {
        Cursor at{column_, 0, 0, 0};
        enter(at);
        return at;
    }
    __device__ void advance(Cursor& at) const {
        at.k += 64;
        if (at.k < at.last) return;
        if (++at.segment == w_->segments) {
            at.segment = 0;
            at.column += stride_;
        }
        enter(at);
    }

    using Tile = Weights<kDtype>[2][kColumns];  // 64 inputs
    struct Inputs {
        float value[2][kGroups][8];
    };

    // The weights at `at`, which goes on.
    __device__ void next(Tile& tile, Cursor& at) const {
        if (at.column >= n_) return;
        const bool aligned = aligned_ && at.k % (16 / size_of(kDtype)) == 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t from = at.k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const int32_t n = at.column + 16 * c + lane() / 4;
                const int64_t offset[2] = {n * w_->k + from, (n + 8) * w_->k + from};
                const int64_t count[2] = {n < n_ ? at.last - from : 0,
                                          n + 8 < n_ ? at.last - from : 0};
                tile[half][c].load(w_->weights, offset, count, aligned);
            }
        }
        advance(at);
    }

    __device__ void load_inputs(Inputs& x, const Cursor& at) const {
        if (at.column >= n_) return;
        const bool aligned = x_aligned_ && at.k % 4 == 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t from = at.k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                load_eight(x.value[half][g], x_[g] + from, at.last - from, aligned);
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
            if (args_.out.by_segment) {
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
        if (row >= rows_ || n >= n_) return;
        const int32_t position = first_ + row;
        const int64_t target = args_.scatter ? args_.order[position] : position;
        float* out = args_.out.data + blockIdx.z * args_.out.member_stride +
                     (whole ? 0 : at.segment) * args_.out.segment_stride +
                     target * args_.out.row_stride + n;
        *out = whole && w_->bias != nullptr ? value + w_->bias[n] : value;
    }

    const NativeProduct& args_;
    Shared& shared_;
    const Matrix* w_ = nullptr;
    int32_t first_ = 0;
    int32_t rows_ = 0;
    int32_t n_ = 0;
    int32_t column_ = 0;
    int32_t stride_ = 0;
    bool aligned_ = false;
    bool x_aligned_ = false;
    uint32_t unit_ = 0;
    float kept_[2][kPerThread] = {};
    const float* x_[kGroups];
};

template <Dtype kDtype, int kGroups, int kColumns, bool kFew>
__global__ void __launch_bounds__(kWarps * 32, kGroups* kColumns == 1 && !kFew ? 2 : 1)
    native_stream_kernel(const __grid_constant__ NativeProduct args) {
    __shared__ typename StreamKernel<kDtype, kGroups, kColumns, kFew>::Shared shared;
    StreamKernel<kDtype, kGroups, kColumns, kFew>(args, shared).run();
}

template <Dtype kDtype, int kGroups, int kColumns, bool kFew>
void launch(const NativeProduct& product, int64_t n, dim3 grid, int32_t resident,
            LaunchStream stream) {
    // As many blocks as the device holds, each with the same number of column tiles but the last.
    constexpr int kResident = kGroups * kColumns == 1 && !kFew ? 2 : 1;
    const int64_t columns = (n + 16 * kColumns - 1) / (16 * kColumns);
    const int64_t limit =
        std::max<int64_t>(1, int64_t{resident} * kResident / (int64_t{grid.x} * grid.z));
    const int64_t rounds = product.table != nullptr ? 1 : (columns + limit - 1) / limit;
    grid.y = static_cast<unsigned>((columns + rounds - 1) / rounds);
    launch_dependent(native_stream_kernel<kDtype, kGroups, kColumns, kFew>, grid, kWarps * 32, 0,
                     stream, product);
}

template <Dtype kDtype>
void launch(const NativeProduct& product, int64_t n, dim3 grid, int32_t groups, int32_t columns,
            int32_t processors, LaunchStream stream) {
    const bool few = product.table == nullptr && (n + 15) / 16 * int64_t{grid.x} <= processors;
    if (groups == 1 && columns == 1 && few) {
        launch<kDtype, 1, 1, true>(product, n, grid, processors, stream);
    } else if (groups == 1 && columns == 1) {
        launch<kDtype, 1, 1, false>(product, n, grid, processors, stream);
    } else if (groups == 1) {
        launch<kDtype, 1, 2, false>(product, n, grid, processors, stream);
    } else if (columns == 1) {
        launch<kDtype, 2, 1, false>(product, n, grid, processors, stream);
    } else {
        launch<kDtype, 2, 2, false>(product, n, grid, processors, stream);
    }
}

}  // namespace

void native_stream(const NativeProduct& product, Dtype dtype, int64_t n, int32_t tiles,
                   int32_t tile_rows, int32_t members, int32_t processors, LaunchStream stream) {
    if (tiles == 0 || n == 0) return;
    require(tile_rows == 8 || tile_rows == 16, "native_stream: tiles of 8 or 16 rows");
    const dim3 grid(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(members));
    const int32_t groups = tile_rows / 8;
    // Two column tiles a warp halve the reads of the activations, which count with more than eight
    // rows.
    const bool many = product.table != nullptr || tiles > 1 || groups > 1;
    const int32_t columns = many && n / 32 * tiles * members >= processors ? 2 : 1;
    switch (dtype) {
        case Dtype::bf16:
            return launch<Dtype::bf16>(product, n, grid, groups, columns, processors, stream);
        case Dtype::f16:
            return launch<Dtype::f16>(product, n, grid, groups, columns, processors, stream);
        case Dtype::f32:
            return launch<Dtype::f32>(product, n, grid, groups, columns, processors, stream);
        default:
            require(false, "native weights are bf16, f16 or f32");
    }
}

}  // namespace quadrille::cuda
