// SPDX-License-Identifier: Apache-2.0
// The DFlash2 drafter's grouped dynamic convolution and selector walk, in fp32.
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/reduce.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;

__device__ float weight_at(const Matrix& w, int64_t index) {
    switch (w.dtype) {
        case Dtype::bf16:
            return __bfloat162float(static_cast<const __nv_bfloat16*>(w.weights)[index]);
        case Dtype::f16:
            return __half2float(static_cast<const __half*>(w.weights)[index]);
        default:
            return static_cast<const float*>(w.weights)[index];
    }
}

__global__ void conv_kernel(View<float> out, View<const float> in, View<const float> dynamic,
                            const float* __restrict__ base, int32_t taps, int32_t group,
                            int32_t block) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (c >= in.cols) return;
    const int64_t groups = in.cols / group;
    for (int64_t t = blockIdx.y; t < in.rows; t += gridDim.y) {
        const int32_t reach = min(taps, static_cast<int32_t>(t % block) + 1);
        float sum = 0.0f;
        for (int32_t tap = 0; tap < reach; ++tap) {
            const float moving = dynamic.data[t * dynamic.stride + tap * groups + c / group];
            sum += (base[tap * in.cols + c] + moving) * in.data[(t - tap) * in.stride + c];
        }
        out.data[t * out.stride + c] = sum;
    }
}

struct Walk {
    View<int32_t> path;
    View<float> scores;  // of no rows: not wanted
    View<const float> values;
    View<const int32_t> ids;
    View<const float> projected;
    Matrix predecessor;
    Matrix successor;
    const int32_t* anchor;
    const SampleRow* draws;  // or nullptr: greedy
};

// A warp per sequence. The first of equal candidates wins; ids of -1 are none.
__global__ void __launch_bounds__(32) walk_kernel(const __grid_constant__ Walk args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ float context[];
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t rank = args.projected.cols;
    const int64_t i = blockIdx.x;
    int32_t* path = args.path.data + i * args.path.stride;
    int32_t before = args.anchor[i];
    for (int64_t t = 0; t < args.path.cols; ++t) {
        const int64_t slot = i * args.path.cols + t;
        const bool paired = rank > 0 && before >= 0 && before < args.predecessor.n;
        __syncwarp();
        for (int64_t r = lane; paired && r < rank; r += 32) {
            context[r] = weight_at(args.predecessor, before * rank + r) *
                         args.projected.data[slot * args.projected.stride + r];
        }
        __syncwarp();
        SampleRow draw;
        if (args.draws != nullptr) {
            draw = args.draws[i];
            draw.drafts = path;
            draw.draft_count = static_cast<int32_t>(t);
        }
        int32_t best = -1;
        double best_score = 0.0;
        for (int64_t b = 0; b < args.ids.cols; ++b) {
            const int32_t id = args.ids.data[slot * args.ids.stride + b];
            float* to = args.scores.rows == 0 || lane != 0
                            ? nullptr
                            : args.scores.data + slot * args.scores.stride + b;
            if (id < 0) {
                if (to != nullptr) *to = -INFINITY;
                continue;
            }
            float plain = args.values.data[slot * args.values.stride + b];
            if (paired && id < args.successor.n) {
                float dot = 0.0f;
                for (int64_t r = lane; r < rank; r += 32) {
                    dot += context[r] * weight_at(args.successor, id * rank + r);
                }
                plain += warp_sum(dot);
            }
            if (args.draws != nullptr) plain = logit_of(draw, plain, id);
            if (to != nullptr) *to = plain;
            double score = static_cast<double>(plain);
            if (args.draws != nullptr && draw.inverse_temperature != 0.0) {
                score = ieee::add(scaled(score, draw.inverse_temperature),
                                  gumbel(draw.seed, draw.position + t, draw.stream, id));
            }
            if (best < 0 || score > best_score) {
                best = id;
                best_score = score;
            }
        }
        before = best;
        if (lane == 0) path[t] = best;
        __syncwarp();  // the next slot reads the path
    }
}

}  // namespace

void CudaBackend::draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                             const float* base, int32_t taps, int32_t group, int32_t block) {
    contract::draft_conv(out, in, dynamic, base, taps, group, block);
    const int64_t h = in.cols;
    if (in.rows == 0 || h == 0) return;
    const dim3 grid(static_cast<unsigned>((h + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min<int64_t>(in.rows, 65535)));
    launch_dependent(conv_kernel, grid, kThreads, 0, stream_.get(), out, in, dynamic, base, taps,
                     group, block);
}

void CudaBackend::walk_path(View<int32_t> path, View<float> scores, const WalkInput& in) {
    contract::walk_path(path, scores, in);
    const auto& [values, ids, projected, predecessor, successor, anchor, draws] = in;
    const int64_t rank = projected.cols;
    const int64_t slots = path.rows * path.cols;
    if (slots == 0) return;
    const Walk walk = {path, scores, values, ids, projected, predecessor, successor, anchor, draws};
    launch_dependent(walk_kernel, static_cast<unsigned>(path.rows), 32,
                     static_cast<int>(rank * static_cast<int64_t>(sizeof(float))), stream_.get(),
                     walk);
}

}  // namespace quadrille::cuda
