// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in absorbed form: queries go into the latent space once per row and
// head, all heads attend to the same latents, values come out of the latent space last. All fp32.
// The attended positions are cut into splits of 128 list entries, whatever the company: each split
// has its own softmax, the splits are merged in order.
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sequence_launch.h"
#include "kernels/cuda/weight.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeys = 32;    // weights of a thread of `absorb` that are under way together
constexpr int kOutputs = 4;  // of a warp of `expand`
constexpr int kSplit = 128;  // list entries of a split
constexpr int kHeads = 8;    // heads of a thread block of `attend`
constexpr int kMaxLatent = 512;
constexpr unsigned kSplitBlocks = 32;
constexpr int64_t kScratchLimit = int64_t{64} << 20;  // floats held at once

struct Attention {
    View<float> out;
    View<const float> query;
    Matrix kv_b;
    View<const float> latents;
    View<const int32_t> selected;
    const int32_t* count;
    MlaParams params;
    Rows rows;
    int64_t first;  // rows [first, first + used) of the pass
    int64_t used;
    int64_t splits = 0;           // the most of any row
    float* queries = nullptr;     // (used, heads, r)
    float* sums = nullptr;        // (used, heads, r)
    float* parts = nullptr;       // (used, heads, splits, r)
    float* part_stats = nullptr;  // (used, heads, splits, 2): largest score, sum of exponentials
};

struct Attended {
    const float* latents;
    const int32_t* list;  // nullptr: 0 .. count - 1
    int64_t count;        // 0: a row of padding
};
__device__ Attended attended(const Attention& args, int64_t row) {
    const int32_t i = args.rows.row_sequence[row];
    const int64_t slot = args.rows.slot[i];
    if (slot < 0) return {nullptr, nullptr, 0};
    const float* latents = args.latents.data + slot * args.latents.stride;
    const int32_t count = args.count[row];
    if (count >= 0) return {latents, args.selected.data + row * args.selected.stride, count};
    return {latents, nullptr, int64_t{args.rows.position[i]} + row - args.rows.begin[i] + 1};
}

// queries[h] = sum over the head's key rows j of q[j] * kv_b row j; a thread per latent channel.
// The weights of kKeys rows are under way together, the first before the kernel that makes the
// queries has ended.
template <class Weight, int kRows>
__global__ void __launch_bounds__(kThreads) absorb_kernel(const __grid_constant__ Attention args) {
    extern __shared__ __align__(16) float q[];  // (key_dim, kRows)
    const auto r = static_cast<int32_t>(args.params.latent_dim);
    const int32_t keys = args.params.key_dim;
    const int32_t head = static_cast<int32_t>(blockIdx.x);
    const int64_t row = int64_t{blockIdx.y} * kRows;
    const auto c = static_cast<int32_t>(blockIdx.z * kThreads + threadIdx.x);
    const Weight* from = static_cast<const Weight*>(args.kv_b.weights) +
                         int64_t{head} * (keys + args.params.value_dim) * r + min(c, r - 1);
    Weight weight[2][kKeys];  // of the rows at hand, and of those that come next
    const auto load = [&](Weight(&to)[kKeys], int32_t j) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) to[i] = from[(j + i) * r];
    };
    if (keys >= kKeys) load(weight[0], 0);
    wait_for_earlier_kernels();
    let_next_kernel_start();
    for (int i = static_cast<int>(threadIdx.x); i < keys * kRows; i += kThreads) {
        const int64_t at = row + i % kRows;
        q[i] = at < args.used ? args.query.data[(args.first + at) * args.query.stride +
                                                int64_t{head} * keys + i / kRows]
                              : 0.0f;
    }
    __syncthreads();
    if (c >= r) return;
    float sum[kRows] = {};
    const auto add = [&](int32_t j, float weight) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) sum[i] += q[j * kRows + i] * weight;
    };
    const auto add_rows = [&](int32_t j, const Weight(&of)[kKeys]) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) add(j + i, value_of(of[i]));
    };
    int32_t j = 0;
    for (; j + 2 * kKeys <= keys; j += 2 * kKeys) {
        load(weight[1], j + kKeys);
        add_rows(j, weight[0]);
        load(weight[0], min(j + 2 * kKeys, keys - kKeys));
        add_rows(j + kKeys, weight[1]);
    }
    for (; j < keys; ++j) add(j, value_of(from[j * r]));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        if (row + i < args.used) {
            args.queries[((row + i) * args.params.heads + head) * r + c] = sum[i];
        }
    }
}

// One split of one row, kHeads heads. Scores: a warp per position and head, each lane every 32nd
// channel. Sums: a thread per channel, all heads.
__global__ void __launch_bounds__(kThreads) attend_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    __shared__ float query[kHeads][kMaxLatent];
    __shared__ float scores[kSplit][kHeads];
    __shared__ float largest[kHeads];
    __shared__ float total[kHeads];
    const int64_t r = args.params.latent_dim;
    const int32_t heads = args.params.heads;
    const int64_t row = blockIdx.z;
    const int32_t head = static_cast<int32_t>(blockIdx.y) * kHeads;
    const int32_t used = min(kHeads, heads - head);
    const Attended set = attended(args, args.first + row);
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const float scale = 1.0f / sqrtf(static_cast<float>(args.params.key_dim));
    for (int i = thread; i < kHeads * kMaxLatent; i += kThreads) {
        const int h = i / kMaxLatent;
        const int c = i % kMaxLatent;
        query[h][c] = h < used && c < r ? args.queries[(row * heads + head + h) * r + c] : 0.0f;
    }
    for (int64_t split = blockIdx.x; split * kSplit < set.count; split += gridDim.x) {
        const int64_t first = split * kSplit;
        const int count = static_cast<int>(min(static_cast<int64_t>(kSplit), set.count - first));
        __syncthreads();
        for (int p = thread / 32; p < count; p += kWarps) {
            const int64_t position = set.list == nullptr ? first + p : set.list[first + p];
            const float* latent = set.latents + position * r;
            float sum[kHeads] = {};
            for (int64_t c = lane; c < r; c += 32) {
                const float x = latent[c];
#pragma unroll
                for (int h = 0; h < kHeads; ++h) sum[h] += query[h][c] * x;
            }
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                sum[h] = warp_sum(sum[h]);
                if (lane == h) scores[p][h] = sum[h] * scale;
            }
        }
        __syncthreads();
        if (thread / 32 < kHeads) {
            const int h = thread / 32;
            float most = -INFINITY;
            for (int p = lane; p < count; p += 32) most = fmaxf(most, scores[p][h]);
#pragma unroll
            for (int stride = 16; stride > 0; stride /= 2) {
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, stride));
            }
            float sum = 0.0f;
            for (int p = lane; p < count; p += 32) {
                scores[p][h] = expf(scores[p][h] - most);
                sum += scores[p][h];
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                largest[h] = most;
                total[h] = sum;
            }
        }
        __syncthreads();
        for (int64_t c = thread; c < r; c += kThreads) {
            float sum[kHeads] = {};
            for (int p = 0; p < count; ++p) {
                const int64_t position = set.list == nullptr ? first + p : set.list[first + p];
                const float x = set.latents[position * r + c];
#pragma unroll
                for (int h = 0; h < kHeads; ++h) sum[h] += scores[p][h] * x;
            }
            for (int h = 0; h < used; ++h) {
                args.parts[((row * heads + head + h) * args.splits + split) * r + c] = sum[h];
            }
        }
        if (thread < used) {
            float* stats =
                args.part_stats + ((row * heads + head + thread) * args.splits + split) * 2;
            stats[0] = largest[thread];
            stats[1] = total[thread];
        }
    }
}

// sums[h] = the splits merged in order; a thread block per row and head.
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t r = args.params.latent_dim;
    const int64_t row = blockIdx.y;
    const int64_t cell = row * args.params.heads + blockIdx.x;
    const Attended set = attended(args, args.first + row);
    const int64_t splits = (set.count + kSplit - 1) / kSplit;
    const float* stats = args.part_stats + cell * args.splits * 2;
    float most = -INFINITY;
    for (int64_t s = 0; s < splits; ++s) most = fmaxf(most, stats[2 * s]);
    float total = 0.0f;
    for (int64_t s = 0; s < splits; ++s) total += stats[2 * s + 1] * expf(stats[2 * s] - most);
    for (int64_t c = threadIdx.x; c < r; c += kThreads) {
        float sum = 0.0f;
        for (int64_t s = 0; s < splits; ++s) {
            sum += args.parts[(cell * args.splits + s) * r + c] * expf(stats[2 * s] - most);
        }
        args.sums[cell * r + c] = splits == 0 ? 0.0f : sum / total;
    }
}

// out[h][j] = value row j of the head . sums[h]; kOutputs outputs of a warp, kRows rows at once.
// The weights are under way before the kernel that makes the sums has ended.
template <class Weight, int kRows>
__global__ void __launch_bounds__(kThreads) expand_kernel(const __grid_constant__ Attention args) {
    __shared__ float sums[kRows][kMaxLatent];
    const auto r = static_cast<int32_t>(args.params.latent_dim);
    const int32_t values = args.params.value_dim;
    const int32_t head = static_cast<int32_t>(blockIdx.x);
    const int64_t row = int64_t{blockIdx.y} * kRows;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto first = static_cast<int32_t>(blockIdx.z * kWarps + threadIdx.x / 32) * kOutputs;
    const Weight* from = static_cast<const Weight*>(args.kv_b.weights) +
                         (int64_t{head} * (args.params.key_dim + values) + args.params.key_dim) * r;
    constexpr int kChannels = kMaxLatent / 32;  // of a lane: every 32nd
    Weight weight[kOutputs][kChannels];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
        // What does not exist is another's weight, times zero or for no output.
        const Weight* of_output = from + min(first + o, values - 1) * r;
#pragma unroll
        for (int i = 0; i < kChannels; ++i) weight[o][i] = of_output[min(i * 32 + lane, r - 1)];
    }
    wait_for_earlier_kernels();
    let_next_kernel_start();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kMaxLatent; i += kThreads) {
        const int64_t at = row + i / kMaxLatent;
        const int c = i % kMaxLatent;
        sums[i / kMaxLatent][c] =
            at < args.used && c < r ? args.sums[(at * args.params.heads + head) * r + c] : 0.0f;
    }
    __syncthreads();
    float sum[kOutputs][kRows] = {};
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            const float x = sums[k][i * 32 + lane];
#pragma unroll
            for (int o = 0; o < kOutputs; ++o) sum[o][k] += value_of(weight[o][i]) * x;
        }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            const float total = warp_sum(sum[o][k]);
            if (lane != 0 || first + o >= values || row + k >= args.used) continue;
            args.out.data[(args.first + row + k) * args.out.stride + int64_t{head} * values +
                          first + o] = total;
        }
    }
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
    int64_t splits;
    int64_t row;   // floats of scratch a row needs
    int64_t rows;  // at once
};
Sizes sizes_of(int64_t rows, View<const float> latents, const MlaParams& params) {
    const int64_t capacity = latents.cols / params.latent_dim;
    const int64_t splits = std::max<int64_t>((capacity + kSplit - 1) / kSplit, 1);
    const int64_t row =
        params.heads * (2 * int64_t{params.latent_dim} + splits * (params.latent_dim + 2));
    return {splits, row,
            std::clamp<int64_t>(kScratchLimit / row, 1, std::clamp<int64_t>(rows, 1, 8192))};
}

// The rows of `args`; kRows of them share one reading of kv_b.
template <class Weight, int kRows>
void attend(const Attention& args, KernelSet& kernels, LaunchStream stream) {
    const auto heads = static_cast<unsigned>(args.params.heads);
    const auto used = static_cast<unsigned>(args.used);
    const unsigned groups = (used + kRows - 1) / kRows;
    const auto columns = static_cast<unsigned>((args.params.latent_dim + kThreads - 1) / kThreads);
    const auto shared = args.params.key_dim * kRows * static_cast<int>(sizeof(float));
    const auto absorb = absorb_kernel<Weight, kRows>;
    kernels.allow_shared(absorb, shared);
    launch_dependent(absorb, dim3(heads, groups, columns), kThreads, shared, stream, args);
    const dim3 grid(std::min(static_cast<unsigned>(args.splits), kSplitBlocks),
                    (heads + kHeads - 1) / kHeads, used);
    launch_dependent(attend_kernel, grid, kThreads, 0, stream, args);
    launch_dependent(merge_kernel, dim3(heads, used), kThreads, 0, stream, args);
    constexpr int kSlice = kWarps * kOutputs;
    const auto slices = static_cast<unsigned>((args.params.value_dim + kSlice - 1) / kSlice);
    launch_dependent(expand_kernel<Weight, kRows>, dim3(heads, groups, slices), kThreads, 0, stream,
                     args);
}

template <class Weight>
void attend(const Attention& args, KernelSet& kernels, LaunchStream stream) {
    if (args.used <= 4) return attend<Weight, 4>(args, kernels, stream);
    attend<Weight, 8>(args, kernels, stream);
}

}  // namespace

void latent_append(View<float> latents, View<const float> latent, const Rows& rows,
                   LaunchStream stream) {
    require(latent.rows == rows.m, "latent_append: latent (m, r)");
    if (rows.m == 0) return;
    launch_dependent(append_kernel, static_cast<unsigned>(rows.m), kThreads, 0, stream, latents,
                     latent, rows);
}

int64_t mla_scratch(int64_t rows, View<const float> latents, const MlaParams& params) {
    const Sizes sizes = sizes_of(rows, latents, params);
    return sizes.row * sizes.rows;
}

void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                   View<const float> latents, View<const int32_t> selected, const int32_t* count,
                   const MlaParams& params, const Rows& rows, float* scratch, KernelSet& kernels,
                   LaunchStream stream) {
    const int64_t r = params.latent_dim;
    require(kv_b.weights != nullptr && kv_b.k == r &&
                kv_b.n == int64_t{params.heads} * (params.key_dim + params.value_dim),
            "mla_attention: kv_b is native (heads (key_dim + value_dim), latent_dim)");
    require(out.rows == rows.m && query.rows == rows.m &&
                out.cols == int64_t{params.heads} * params.value_dim &&
                query.cols == int64_t{params.heads} * params.key_dim,
            "mla_attention: out (m, heads value_dim), query (m, heads key_dim)");
    require(r <= kMaxLatent, "mla_attention: latents of at most 512 on a GPU");
    const Sizes sizes = sizes_of(rows.m, latents, params);
    for (int64_t first = 0; first < rows.m; first += sizes.rows) {
        const int64_t used = std::min(sizes.rows, rows.m - first);
        Attention args = {out, query, kv_b, latents, selected, count, params, rows, first, used};
        args.splits = sizes.splits;
        args.queries = scratch;
        args.sums = args.queries + used * params.heads * r;
        args.parts = args.sums + used * params.heads * r;
        args.part_stats = args.parts + used * params.heads * sizes.splits * r;
        switch (kv_b.dtype) {
            case Dtype::bf16:
                attend<__nv_bfloat16>(args, kernels, stream);
                break;
            case Dtype::f16:
                attend<__half>(args, kernels, stream);
                break;
            default:
                attend<float>(args, kernels, stream);
        }
    }
}

}  // namespace quadrille::cuda
