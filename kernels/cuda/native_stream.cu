// SPDX-License-Identifier: Apache-2.0
// Native products of up to 16 rows a tile: reads every weight once, 16 bytes a lane, straight into
// registers; eight warps take the eight spans of a segment. Bound: bytes of the weights / read
// bandwidth.
#include "kernels/cuda/handles.h"
#include "kernels/cuda/native_tile.cuh"

namespace quadrille::cuda {

namespace {

constexpr int kWarps = 8;

template <Dtype kDtype, int kGroups, int kColumns>
class StreamKernel {
  public:
    static constexpr bool kBf16 = kDtype == Dtype::bf16;
    static constexpr int kOutputs = 16 * kColumns;
    static constexpr int kRows = 8 * kGroups;
    // Steps of 64 inputs whose weights are under way: 8 KB a warp.
    static constexpr int kDepth = (kDtype == Dtype::f32 ? 2 : 4) / kColumns;

    struct Shared {
        float part[kWarps][kRows][kOutputs + 1];
    };

    __device__ StreamKernel(const NativeProduct& args, Shared& shared)
        : args_(args), shared_(shared) {}

    __device__ void run() {
        if (!locate()) return;
        float value[kPerThread] = {};
        float kept[2][kPerThread] = {};
        for (int32_t s = 0; s < w_->segments; ++s) {
            product(segment_inputs(*w_, s));
            __syncthreads();
            add_spans(value);
            __syncthreads();
            if (args_.out.by_segment) {
                store(value, s, false);
                continue;
            }
#pragma unroll
            for (int i = 0; i < kPerThread; ++i) {
                const float first = s < 2 ? kept[0][i] : kept[1][i];
                const float pair = s % 2 == 0 ? value[i] : first + value[i];
                if (s < 2) {
                    kept[0][i] = pair;
                } else {
                    kept[1][i] = pair;
                }
            }
        }
        if (args_.out.by_segment) return;
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            value[i] = w_->segments == 4 ? kept[0][i] + kept[1][i] : kept[0][i];
        }
        store(value, 0, true);
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
        column_ = static_cast<int64_t>(blockIdx.y) * kOutputs;
        if (w_->weights == nullptr || w_->dtype != kDtype || column_ >= w_->n) return false;
        const auto address = reinterpret_cast<uintptr_t>(w_->weights);
        aligned_ = address % 16 == 0 && w_->k % (16 / size_of(kDtype)) == 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int row = 8 * g + lane() / 4;
            x_[g] = row < rows_ ? args_.x + source(first_ + row) * args_.x_stride : nullptr;
        }
        x_aligned_ = reinterpret_cast<uintptr_t>(args_.x) % 16 == 0 && args_.x_stride % 4 == 0;
        return true;
    }
    __device__ int64_t source(int32_t position) const {
        return args_.order == nullptr || args_.slots == 0 ? position
                                                          : args_.order[position] / args_.slots;
    }

    using Tile = Weights<kDtype>[2][kColumns];  // 64 inputs

    __device__ void load(Tile& tile, int64_t k, int64_t last, bool aligned) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t from = k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const int64_t n = column_ + 16 * c + lane() / 4;
                const int64_t offset[2] = {n * w_->k + from, (n + 8) * w_->k + from};
                const int64_t count[2] = {n < w_->n ? last - from : 0,
                                          n + 8 < w_->n ? last - from : 0};
                tile[half][c].load(w_->weights, offset, count, aligned);
            }
        }
    }

    // acc += 64 inputs.
    __device__ void accumulate(float (&acc)[kColumns][kGroups][4], const Tile& tile, int64_t k,
                               int64_t last, bool x_aligned) const {
        float x[2][kGroups][8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t from = k + 32 * half + 8 * (lane() % 4);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                load_eight(x[half][g], x_[g] + from, x_[g] == nullptr ? 0 : last - from, x_aligned);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                Activations<kBf16> activations;
                activations.split(x[half][g]);
#pragma unroll
                for (int c = 0; c < kColumns; ++c) multiply(acc[c][g], tile[half][c], activations);
            }
        }
    }

    // This warp's span of the segment, its sums to shared memory.
    __device__ void product(InputRange range) {
        const int64_t span = native_span(range.width);
        const int64_t first = range.first + min(warp() * span, range.width);
        const int64_t last = range.first + min((warp() + 1) * span, range.width);
        const bool aligned = aligned_ && first % (16 / size_of(kDtype)) == 0;
        const bool x_aligned = x_aligned_ && first % 4 == 0;
        float acc[kColumns][kGroups][4] = {};
        Tile ring[kDepth];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            if (first + 64 * i < last) load(ring[i], first + 64 * i, last, aligned);
        }
        for (int64_t start = first; start < last; start += 64 * kDepth) {
#pragma unroll
            for (int i = 0; i < kDepth; ++i) {
                const int64_t k = start + 64 * i;
                if (k >= last) break;
                accumulate(acc, ring[i], k, last, x_aligned);
                if (k + 64 * kDepth < last) load(ring[i], k + 64 * kDepth, last, aligned);
            }
        }
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    shared_.part[warp()][8 * g + lane() % 4 * 2 + i % 2]
                                [16 * c + lane() / 4 + i / 2 * 8] = acc[c][g][i];
                }
            }
        }
    }

    __device__ int element(int i) const {
        return static_cast<int>(threadIdx.x) + i * kWarps * 32;
    }

    __device__ void add_spans(float (&value)[kPerThread]) const {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            if (element(i) >= kRows * kOutputs) continue;
            value[i] = 0.0f;
            for (int p = 0; p < kWarps; ++p) {
                value[i] += shared_.part[p][element(i) / kOutputs][element(i) % kOutputs];
            }
        }
    }

    __device__ void store(const float (&value)[kPerThread], int32_t segment, bool bias) const {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            const int row = element(i) / kOutputs;
            const int64_t n = column_ + element(i) % kOutputs;
            if (element(i) >= kRows * kOutputs || row >= rows_ || n >= w_->n) continue;
            const int32_t position = first_ + row;
            const int64_t target = args_.scatter ? args_.order[position] : position;
            const float offset = bias && w_->bias != nullptr ? w_->bias[n] : 0.0f;
            float* out = args_.out.data + blockIdx.z * args_.out.member_stride +
                         segment * args_.out.segment_stride + target * args_.out.row_stride + n;
            *out = bias && w_->bias != nullptr ? value[i] + offset : value[i];
        }
    }

    const NativeProduct& args_;
    Shared& shared_;
    const Matrix* w_ = nullptr;
    int32_t first_ = 0;
    int32_t rows_ = 0;
    int64_t column_ = 0;
    bool aligned_ = false;
    bool x_aligned_ = false;
    const float* x_[kGroups];
};

template <Dtype kDtype, int kGroups, int kColumns>
__global__ void __launch_bounds__(kWarps * 32, kGroups* kColumns == 1 ? 2 : 1)
    native_stream_kernel(const __grid_constant__ NativeProduct args) {
    __shared__ typename StreamKernel<kDtype, kGroups, kColumns>::Shared shared;
    StreamKernel<kDtype, kGroups, kColumns>(args, shared).run();
}

template <Dtype kDtype>
void launch(const NativeProduct& product, int64_t n, dim3 grid, int32_t groups, int32_t columns,
            cudaStream_t stream) {
    grid.y = static_cast<unsigned>((n + 16 * columns - 1) / (16 * columns));
    constexpr int kThreads = kWarps * 32;
    if (groups == 1 && columns == 1) {
        native_stream_kernel<kDtype, 1, 1><<<grid, kThreads, 0, stream>>>(product);
    } else if (groups == 1) {
        native_stream_kernel<kDtype, 1, 2><<<grid, kThreads, 0, stream>>>(product);
    } else if (columns == 1) {
        native_stream_kernel<kDtype, 2, 1><<<grid, kThreads, 0, stream>>>(product);
    } else {
        native_stream_kernel<kDtype, 2, 2><<<grid, kThreads, 0, stream>>>(product);
    }
    LAUNCH_CHECK();
}

}  // namespace

void native_stream(const NativeProduct& product, Dtype dtype, int64_t n, int32_t tiles,
                   int32_t tile_rows, int32_t members, int32_t processors, cudaStream_t stream) {
    if (tiles == 0 || n == 0) return;
    require(tile_rows == 8 || tile_rows == 16, "native_stream: tiles of 8 or 16 rows");
    const dim3 grid(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(members));
    // Two column tiles a warp halve the reads of the activations where there are blocks enough.
    const int32_t columns = n / 32 * tiles * members >= processors ? 2 : 1;
    const int32_t groups = tile_rows / 8;
    switch (dtype) {
        case Dtype::bf16:
            return launch<Dtype::bf16>(product, n, grid, groups, columns, stream);
        case Dtype::f16:
            return launch<Dtype::f16>(product, n, grid, groups, columns, stream);
        case Dtype::f32:
            return launch<Dtype::f32>(product, n, grid, groups, columns, stream);
        default:
            require(false, "native weights are bf16, f16 or f32");
    }
}

}  // namespace quadrille::cuda
