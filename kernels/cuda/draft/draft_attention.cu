// SPDX-License-Identifier: Apache-2.0
// The drafter's keys and values: rows of the context into the ring, a draft block's attention over
// it (draft_attend.cuh).
#include "kernels/contract.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/draft/draft_attend.cuh"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxDim = 256;
constexpr int64_t kPieceFloats = int64_t{16} << 20;  // of pieces held at once

// The most pieces of a sequence.
int32_t most_pieces(const DraftCache& cache, const DraftAttentionParams& params) {
    const int64_t seen = params.window > 0 ? int64_t{params.window} - 1 : cache.ring_size;
    return static_cast<int32_t>((seen + params.block + kPositions - 1) / kPositions + 1);
}
// Floats of the pieces of a sequence: sums, largest scores and totals.
int64_t piece_floats(const DraftCache& cache, const DraftAttentionParams& params) {
    return int64_t{params.heads} * params.block * most_pieces(cache, params) *
           (params.head_dim + 2);
}
// Sequences whose pieces are held at once.
int32_t slab_of(const DraftCache& cache, const DraftAttentionParams& params, int32_t sequences) {
    const int64_t room = kPieceFloats / piece_floats(cache, params);
    return static_cast<int32_t>(std::clamp<int64_t>(room, 1, std::max(sequences, 1)));
}

// out = rope(rms_norm(in) * weight) at `position`, one head, by a warp; element j is paired with
// j + d / 2.
__device__ void norm_and_rotate(float* out, const float* in, const float* weight, int64_t position,
                                const DraftAttentionParams& params) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t d = params.head_dim;
    const int32_t half = d / 2;
    float squares = 0.0f;
    for (int32_t j = lane; j < d; j += 32) squares += in[j] * in[j];
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(d) + params.norm_eps);
    for (int32_t j = lane; j < half; j += 32) {
        const float divisor =
            powf(params.rope_theta, static_cast<float>(2 * j) / static_cast<float>(d));
        const float angle = static_cast<float>(position) / divisor;
        const float cosine = cosf(angle);
        const float sine = sinf(angle);
        const float low = in[j] * inverse * weight[j];
        const float high = in[half + j] * inverse * weight[half + j];
        out[j] = low * cosine - high * sine;
        out[half + j] = high * cosine + low * sine;
    }
}

__global__ void __launch_bounds__(kThreads)
    append_kernel(DraftCache cache, View<const float> key, View<const float> value,
                  const float* k_norm, const uint8_t* write, DraftAttentionParams params,
                  const __grid_constant__ Rows rows) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int32_t i = rows.row_sequence[row];
    if (rows.slot[i] < 0 || write[row] == 0) return;
    const int64_t position = int64_t{rows.position[i]} + row - rows.begin[i];
    const int64_t width = int64_t{params.kv_heads} * params.head_dim;
    // In a pass longer than the ring, the last row that is written to a place stays.
    for (int64_t later = row + cache.ring_size; later < rows.begin[i + 1];
         later += cache.ring_size) {
        if (write[later] != 0) return;
    }
    const int64_t at = position % cache.ring_size * width;
    float* keys = cache.keys.data + rows.slot[i] * cache.keys.stride + at;
    float* values = cache.values.data + rows.slot[i] * cache.values.stride + at;
    for (int32_t g = static_cast<int32_t>(threadIdx.x) / 32; g < params.kv_heads; g += kWarps) {
        norm_and_rotate(keys + int64_t{g} * params.head_dim,
                        key.data + row * key.stride + int64_t{g} * params.head_dim, k_norm,
                        position, params);
    }
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
        values[c] = value.data[row * value.stride + c];
    }
}

struct Rotation {
    View<const float> query;
    View<const float> key;
    const float* q_norm;
    const float* k_norm;
    DraftAttentionParams params;
    Rows rows;
    float* queries;  // (rows, heads, d) normed and rotated
    float* keys;     // (rows, kv_heads, d)
};

__global__ void __launch_bounds__(kThreads) rotate_kernel(const __grid_constant__ Rotation args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int32_t i = static_cast<int32_t>(row / args.params.block);
    if (args.rows.slot[i] < 0) return;
    const int64_t position = int64_t{args.rows.position[i]} + row % args.params.block;
    const int64_t d = args.params.head_dim;
    const int32_t heads = args.params.heads;
    for (int32_t h = static_cast<int32_t>(threadIdx.x) / 32; h < heads + args.params.kv_heads;
         h += kWarps) {
        if (h < heads) {
            norm_and_rotate(args.queries + (row * heads + h) * d,
                            args.query.data + row * args.query.stride + h * d, args.q_norm,
                            position, args.params);
        } else {
            const int64_t g = h - heads;
            norm_and_rotate(args.keys + (row * args.params.kv_heads + g) * d,
                            args.key.data + row * args.key.stride + g * d, args.k_norm, position,
                            args.params);
        }
    }
}

// One row of one head: the pieces against the largest of all scores, added in order. A thread a
// channel; shared: a factor for each piece.
__global__ void __launch_bounds__(kAttendThreads)
    add_pieces_kernel(const __grid_constant__ Attention args) {
    wait_for_earlier_kernels();
    let_next_kernel_start();
    extern __shared__ __align__(16) float factors[];
    const int32_t d = args.params.head_dim;
    const auto head = static_cast<int32_t>(blockIdx.x);
    const auto j = static_cast<int32_t>(blockIdx.y);
    const int32_t sequence = args.first + static_cast<int32_t>(blockIdx.z);
    const int64_t row = int64_t{sequence} * args.params.block + j;
    float* out = args.out.data + row * args.out.stride + int64_t{head} * d;
    const auto c = static_cast<int32_t>(threadIdx.x);
    if (args.rows.slot[sequence] < 0) {
        if (c < d) out[c] = 0.0f;
        return;
    }
    const int32_t count = Pieces(args, sequence).count();
    const int64_t first = piece_at(args, sequence, head, j, 0);
    const float2* totals = args.totals + first;
    float most = -INFINITY;
    for (int32_t p = 0; p < count; ++p) most = fmaxf(most, totals[p].x);
    for (int32_t p = c; p < count; p += static_cast<int32_t>(blockDim.x)) {
        factors[p] = totals[p].x == -INFINITY ? 0.0f : expf(totals[p].x - most);
    }
    __syncthreads();
    if (c >= d) return;
    float total = 0.0f;
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t p = 0; p < count; ++p) {
        total += totals[p].y * factors[p];
        sum += args.sums[(first + p) * d + c] * factors[p];
    }
    out[c] = sum / total;
}

}  // namespace

void CudaBackend::draft_append(const DraftCache& cache, View<const float> key,
                               View<const float> value, const float* k_norm, const uint8_t* write,
                               const DraftAttentionParams& params, const Rows& rows) {
    contract::draft_append(cache, key, value, k_norm, write, params, rows);
    if (rows.m == 0) return;
    launch_dependent(append_kernel, static_cast<unsigned>(rows.m), kThreads, 0, stream_.get(),
                     cache, key, value, k_norm, write, params, rows);
}

void CudaBackend::draft_attention(View<float> out, const DraftBlock& block, const DraftCache& cache,
                                  const DraftAttentionParams& params, const Rows& rows) {
    contract::draft_attention(out, block, cache, params, rows);
    const auto& [query, key, value, q_norm, k_norm] = block;
    const int64_t d = params.head_dim;
    require(d <= kMaxDim, "draft_attention: heads of at most 256 on a GPU");
    require(rows.sequences < 65536 && params.block < 65536, "draft_attention: fewer than 65536");
    if (out.rows == 0) return;
    const int32_t slab = slab_of(cache, params, rows.sequences);
    Workspace::Scope scope(workspace_);
    float* queries = scope.take<float>(out.rows * (params.heads + params.kv_heads) * d +
                                       slab * piece_floats(cache, params));
    float* keys = queries + out.rows * params.heads * d;
    launch_dependent(rotate_kernel, static_cast<unsigned>(out.rows), kThreads, 0, stream_.get(),
                     Rotation{query, key, q_norm, k_norm, params, rows, queries, keys});
    Attention args{.out = out,
                   .value = value,
                   .cache = cache,
                   .params = params,
                   .rows = rows,
                   .queries = queries,
                   .keys = keys};
    args.pieces = most_pieces(cache, params);
    const auto aligned = [](const float* data, int64_t stride) {
        return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
    };
    args.aligned = d % 4 == 0 && aligned(queries, d) && aligned(value.data, value.stride) &&
                   aligned(cache.keys.data, cache.keys.stride) &&
                   aligned(cache.values.data, cache.values.stride);
    const int64_t pieces = int64_t{slab} * params.heads * params.block * args.pieces;
    args.totals = reinterpret_cast<float2*>(keys + out.rows * params.kv_heads * d);
    args.sums = reinterpret_cast<float*>(args.totals + pieces);
    constexpr auto kShared = static_cast<int>(sizeof(PieceKernel::Shared));
    const int factors = args.pieces * static_cast<int>(sizeof(float));
    kernels_.allow_shared(piece_kernel, kShared);
    kernels_.allow_shared(add_pieces_kernel, std::max(factors, kShared));
    const int32_t group = params.heads / params.kv_heads;
    const int32_t tiles = (group * params.block + kQueries - 1) / kQueries;
    for (args.first = 0; args.first < rows.sequences; args.first += slab) {
        const auto count = static_cast<unsigned>(std::min(slab, rows.sequences - args.first));
        launch_dependent(piece_kernel,
                         dim3(static_cast<unsigned>(args.pieces),
                              static_cast<unsigned>(params.kv_heads * tiles), count),
                         kAttendThreads, kShared, stream_.get(), args);
        launch_dependent(
            add_pieces_kernel,
            dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(params.block), count),
            static_cast<int>((d + 31) / 32 * 32), factors, stream_.get(), args);
    }
}

}  // namespace quadrille::cuda
