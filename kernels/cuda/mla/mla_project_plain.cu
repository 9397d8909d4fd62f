// SPDX-License-Identifier: Apache-2.0
// The products of MLA with kv_b in fp32, for weights of any type: the sum of an output runs over
// ascending inputs, or over those of each lane and then over the lanes. Up to eight rows share one
// reading of the weights.
#include "kernels/cuda/ceil_div.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/mla/mla_project.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/weight.cuh"

#include <type_traits>

namespace quadrille::cuda::mla {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeys = 32;    // weights of a thread of `absorb` that are under way together
constexpr int kOutputs = 4;  // of a warp of `expand`

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

// launch(weight, rows): a weight of the matrix's type, and how many rows (4 or 8) share a reading.
template <class Launch>
void by_kind(const Attention& args, const Launch& launch) {
    const auto by_rows = [&](auto weight) {
        if (args.used <= 4) return launch(weight, std::integral_constant<int, 4>());
        launch(weight, std::integral_constant<int, 8>());
    };
    switch (args.kv_b.dtype) {
        case Dtype::bf16:
            return by_rows(__nv_bfloat16());
        case Dtype::f16:
            return by_rows(__half());
        default:
            by_rows(0.0f);
    }
}

dim3 grid_of(const Attention& args, int64_t rows, int64_t slices) {
    return {static_cast<unsigned>(args.params.heads),
            static_cast<unsigned>(ceil_div(args.used, rows)), static_cast<unsigned>(slices)};
}

}  // namespace

void absorb_plain(const Attention& args, KernelSet& kernels, LaunchStream stream) {
    by_kind(args, [&](auto weight, auto rows) {
        const auto kernel = absorb_kernel<decltype(weight), rows()>;
        const int shared = args.params.key_dim * rows() * static_cast<int>(sizeof(float));
        kernels.allow_shared(kernel, shared);
        const dim3 grid = grid_of(args, rows(), ceil_div(args.params.latent_dim, kThreads));
        launch_dependent(kernel, grid, kThreads, shared, stream, args);
    });
}

void expand_plain(const Attention& args, LaunchStream stream) {
    by_kind(args, [&](auto weight, auto rows) {
        const dim3 grid = grid_of(args, rows(), ceil_div(args.params.value_dim, kWarps * kOutputs));
        launch_dependent(expand_kernel<decltype(weight), rows()>, grid, kThreads, 0, stream, args);
    });
}

}  // namespace quadrille::cuda::mla
