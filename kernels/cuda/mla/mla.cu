// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in absorbed form: queries go into the latent space once per row and
// head (mla_project.cuh), all heads attend to the same latents (mla_attend.cuh), values come out of
// the latent space last. All fp32 or as good.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/mla/mla_attend.cuh"
#include "kernels/cuda/mla/mla_project.cuh"
#include "kernels/cuda/mla/mla_tile.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

using mla::attended;
using mla::Attended;
using mla::Attention;
using mla::fold;
using mla::Fold;
using mla::kMaxLatent;
using mla::kTile;

constexpr int kThreads = 256;
constexpr int64_t kScratchLimit = int64_t{64} << 20;  // floats held at once
// Thread blocks of `attend` that keep a GPU busy. Where every row can have less than two of them,
// each takes a whole row.
constexpr int64_t kBusy = 132;

// Sums of the latents: a row by one thread block for 32 heads, or by several, in parts.
template <bool kWhole, bool kAhead>
__global__ void __launch_bounds__(mla::kAttendThreads, 1)
    attend_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ __align__(16) unsigned char shared[];
    using Attend = mla::Attend<kWhole, kAhead>;
    Attend(args, *reinterpret_cast<typename Attend::Shared*>(shared)).run();
}

constexpr int kMergeThreads = 128;
constexpr int kMergeLoads = 33;  // under way together: 2051 entries in two goes

// How the tiles from `base` on change the sum, for all threads; `carry`, the largest score before
// them, moves on. A thread per tile.
struct alignas(16) Step {
    float keep, take, total;
};
__device__ __forceinline__ void merge_steps(Step (&steps)[kMergeThreads],
                                            float (&largest)[kMergeThreads / 32],
                                            const float* stats, int64_t left, float& carry) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const float most = thread < left ? stats[2 * thread] : -INFINITY;
    const float total = thread < left ? stats[2 * thread + 1] : 0.0f;
    float after = most;  // the largest of the tiles up to this one
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, after, stride);
        if (lane >= stride) after = fmaxf(after, other);
    }
    float before = __shfl_up_sync(0xffffffffu, after, 1);
    if (lane == 31) largest[thread / 32] = after;
    __syncthreads();
    float ahead = carry;
#pragma unroll
    for (int w = 0; w < kMergeThreads / 32; ++w) {
        if (w < thread / 32) ahead = fmaxf(ahead, largest[w]);
        carry = fmaxf(carry, largest[w]);
    }
    before = lane == 0 ? ahead : fmaxf(ahead, before);
    const Fold by = mla::fold_scale(before, most);
    steps[thread] = {by.keep, by.take, total};
    __syncthreads();
}

// sums[h] = the fold of the tiles; a thread per two channels of a row and head.
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ Step steps[kMergeThreads];
    __shared__ float largest[kMergeThreads / 32];
    const int32_t r = args.params.latent_dim;
    const int64_t cell = int64_t{blockIdx.y} * args.params.heads + blockIdx.x;
    const int64_t c = (int64_t{blockIdx.z} * kMergeThreads + threadIdx.x) * 2;
    const Attended set = attended(args, args.first + blockIdx.y);
    const int32_t tiles = (set.count + kTile - 1) / kTile;
    const float* stats = args.part_stats + cell * args.tiles * 2;
    const float* parts = args.parts + cell * args.tiles * r + min(c, int64_t{r} - 2);
    float carry = -INFINITY;
    float2 sum = {0.0f, 0.0f};
    float total = 0.0f;
    for (int32_t base = 0; base < tiles; base += kMergeThreads) {
        const int here = min(kMergeThreads, tiles - base);
        float2 part[kMergeLoads];
        const auto load = [&](int from) {
            const float* at = parts + int64_t{base + from} * r;
#pragma unroll
            for (int i = 0; i < kMergeLoads; ++i) {
                if (from + i < here) part[i] = *reinterpret_cast<const float2*>(at + i * r);
            }
        };
        load(0);
        merge_steps(steps, largest, stats + base * 2, here, carry);
        for (int from = 0; from < here; from += kMergeLoads) {
            if (from > 0) load(from);
#pragma unroll
            for (int i = 0; i < kMergeLoads; ++i) {
                if (from + i >= here) break;
                const Step by = steps[from + i];
                sum.x = fold(sum.x, by.keep, part[i].x, by.take);
                sum.y = fold(sum.y, by.keep, part[i].y, by.take);
                total = fold(total, by.keep, by.total, by.take);
            }
        }
        __syncthreads();
    }
    if (c >= r) return;
    *reinterpret_cast<float2*>(args.sums + cell * r + c) =
        tiles == 0 ? float2{0.0f, 0.0f} : float2{sum.x / total, sum.y / total};
}

__global__ void __launch_bounds__(kThreads)
    append_kernel(View<float> latents, View<const float> latent,
                  const __grid_constant__ Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int32_t i = rows.row_sequence[row];
    if (rows.slot[i] < 0) return;
    const int64_t position = int64_t{rows.position[i]} + row - rows.begin[i];
    float* to = latents.data + rows.slot[i] * latents.stride + position * latent.cols;
    for (int64_t c = threadIdx.x; c < latent.cols; c += kThreads) {
        to[c] = latent.data[row * latent.stride + c];
    }
}

struct Sizes {
    int64_t parts;   // a row can have; 0: a thread block takes a whole row
    int64_t row;     // floats of scratch a row needs
    int64_t rows;    // at once
    int64_t blocks;  // of `attend` for a row and 32 heads
};
// width: the most positions of a row.
Sizes sizes_of(int64_t rows, int64_t width, const MlaParams& params) {
    constexpr int kHeads = mla::kHeads;
    const int64_t groups = (params.heads + kHeads - 1) / kHeads;
    Sizes sizes{};
    const bool whole = rows * groups * 2 > kBusy;
    sizes.parts = whole ? 0 : std::max<int64_t>((width + kTile - 1) / kTile, 1);
    sizes.row =
        params.heads * (2 * int64_t{params.latent_dim} + sizes.parts * (params.latent_dim + 2));
    const int64_t most = std::clamp<int64_t>(kScratchLimit / sizes.row, 1, 8192);
    const int64_t turns = std::max<int64_t>((rows + most - 1) / most, 1);
    sizes.rows = std::max<int64_t>((rows + turns - 1) / turns, 1);
    sizes.blocks = whole ? 1 : std::clamp<int64_t>(kBusy / (sizes.rows * groups), 1, sizes.parts);
    return sizes;
}

template <bool kWhole, bool kAhead>
void launch_attend(const Attention& args, int64_t blocks, KernelSet& kernels, LaunchStream stream) {
    const auto kernel = attend_kernel<kWhole, kAhead>;
    constexpr auto kShared = static_cast<int>(sizeof(typename mla::Attend<kWhole, kAhead>::Shared));
    static_assert(kAhead || kShared <= 98 * 1024);  // what the smallest devices have
    if constexpr (kAhead) {
        if (kShared > kernels.shared_limit()) {
            return launch_attend<kWhole, false>(args, blocks, kernels, stream);
        }
    }
    kernels.allow_shared(kernel, kShared);
    const int32_t groups = (args.params.heads + mla::kHeads - 1) / mla::kHeads;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(groups),
                    static_cast<unsigned>(args.used));
    launch_dependent(kernel, grid, mla::kAttendThreads, kShared, stream, args);
}

void attend_latents(const Attention& args, int64_t blocks, KernelSet& kernels,
                    LaunchStream stream) {
    if (args.parts == nullptr) return launch_attend<true, true>(args, blocks, kernels, stream);
    launch_attend<false, true>(args, blocks, kernels, stream);
    const dim3 grid(static_cast<unsigned>(args.params.heads), static_cast<unsigned>(args.used),
                    static_cast<unsigned>((args.params.latent_dim + 2 * kMergeThreads - 1) /
                                          (2 * kMergeThreads)));
    launch_dependent(merge_kernel, grid, kMergeThreads, 0, stream, args);
}

}  // namespace

void CudaBackend::latent_append(View<float> latents, View<const float> latent, const Rows& rows) {
    contract::latent_append(latents, latent, rows);
    if (rows.m == 0) return;
    launch_dependent(append_kernel, static_cast<unsigned>(rows.m), kThreads, 0, stream_.get(),
                     latents, latent, rows);
}

void CudaBackend::mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                                View<const float> latents, View<const int32_t> selected,
                                const int32_t* count, const MlaParams& params, const Rows& rows) {
    contract::mla_attention(out, query, kv_b, latents, selected, count, params, rows);
    const int64_t r = params.latent_dim;
    require(r <= kMaxLatent && r % 4 == 0,
            "mla_attention: latents of at most 512 numbers, a multiple of 4, on a GPU");
    const Sizes sizes = sizes_of(rows.m, selected.cols, params);
    Workspace::Scope scope(workspace_);
    auto* scratch = scope.take<float>(sizes.row * sizes.rows);
    for (int64_t first = 0; first < rows.m; first += sizes.rows) {
        const int64_t used = std::min(sizes.rows, rows.m - first);
        Attention args = {out, query, kv_b, latents, selected, count, params, rows, first, used};
        args.tiles = sizes.parts;
        args.queries = scratch;
        args.sums = args.queries + used * params.heads * r;
        if (sizes.parts > 0) {
            args.parts = args.sums + used * params.heads * r;
            args.part_stats = args.parts + used * params.heads * sizes.parts * r;
        }
        mla::absorb(args, kernels_, stream_.get());
        attend_latents(args, sizes.blocks, kernels_, stream_.get());
        mla::expand(args, kernels_, stream_.get());
    }
}

}  // namespace quadrille::cuda
