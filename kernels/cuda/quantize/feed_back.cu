// SPDX-License-Identifier: Apache-2.0
// Errors fed back and measured: the products around the search (kernels/cuda/quantize/viterbi.cu),
// a thread a column, every sum over rows ascending.
#include "kernels/cuda/quantize/trellis_kernels.h"
#include "kernels/exl3.h"

#include <cuda_fp16.h>

namespace quadrille::cuda {

namespace {

constexpr int kTile = exl3::kTile;
constexpr int kTileSize = exl3::kTileSize;
constexpr int kAhead = 8;  // rows loaded before they are used

// sum (16) += over rows j of feedback[j][r] * values[j * n].
__device__ void feed_back(float* sum, const float* feedback, const float* values, int64_t n,
                          int64_t rows) {
    for (int64_t j = 0; j < rows; j += kAhead) {  // rows: a multiple of 16
        float value[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) value[a] = values[(j + a) * n];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            const auto* four = reinterpret_cast<const float4*>(feedback + (j + a) * kTile);
#pragma unroll
            for (int q = 0; q < kTile / 4; ++q) {
                const float4 factor = __ldg(four + q);
                sum[4 * q] = __fmaf_rn(factor.x, value[a], sum[4 * q]);
                sum[4 * q + 1] = __fmaf_rn(factor.y, value[a], sum[4 * q + 1]);
                sum[4 * q + 2] = __fmaf_rn(factor.z, value[a], sum[4 * q + 2]);
                sum[4 * q + 3] = __fmaf_rn(factor.w, value[a], sum[4 * q + 3]);
            }
        }
    }
}

// sum over columns of v^T metric v, v (16, 16) by row, by the 256 threads that call it; s_terms
// (256). The first of them gets the sum.
__device__ double weighed(const float* v, const float* metric, double* s_terms, int thread) {
    const int r = thread / kTile;
    const int s = thread % kTile;
    double products = 0;
    for (int c = 0; c < kTile; ++c) {
        products = __dadd_rn(products, __dmul_rn(static_cast<double>(v[r * kTile + c]),
                                                 static_cast<double>(v[s * kTile + c])));
    }
    s_terms[thread] =
        metric == nullptr ? products : __dmul_rn(products, static_cast<double>(metric[thread]));
    __syncthreads();
    double sum = 0;
    if (thread == 0) {
        for (int i = 0; i < kTileSize; ++i) {
            if (metric != nullptr || i / kTile == i % kTile) sum = __dadd_rn(sum, s_terms[i]);
        }
    }
    __syncthreads();
    return sum;
}

__global__ void __launch_bounds__(kGroupColumns) gather_kernel(RowBlock rows) {
    const ColumnGroup& group = rows.groups[blockIdx.x];
    const int column = static_cast<int>(threadIdx.x);
    const int64_t first = rows.block * kTile;
    float sum[kTile];
#pragma unroll
    for (int r = 0; r < kTile; ++r) sum[r] = group.weights[(first + r) * group.n + column];
    if (group.has_hessian) {
        const int64_t from = rows.sweep ? 0 : first + kTile;
        const float* feedback = rows.sweep ? group.hessian.sweep_feedback : group.hessian.feedback;
        feed_back(sum, feedback + (rows.block * rows.k + from) * kTile,
                  group.errors + from * group.n + column, group.n, rows.k - from);
    }
    const int64_t tile = int64_t{blockIdx.x} * kGroupTiles + column / kTile;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        rows.tiles[tile * kTileSize + exl3::tile_position(r, column % kTile)] = sum[r];
    }
    if (!rows.sweep || column % kTile != 0) return;
    const uint16_t* states =
        group.states + rows.block * group.n * kTile + column / kTile * kTileSize;
    rows.states[tile * kTileSize] = states[0];  // the seam
}

__global__ void __launch_bounds__(kTileSize) keep_kernel(RowBlock rows, const F16* table) {
    __shared__ float s_difference[kTileSize];
    __shared__ double s_terms[kTileSize];
    __shared__ bool s_better;
    const ColumnGroup& group = rows.groups[blockIdx.x / kGroupTiles];
    const int thread = static_cast<int>(threadIdx.x);
    const int column = static_cast<int>(blockIdx.x % kGroupTiles) * kTile + thread % kTile;
    const int64_t row = rows.block * kTile + thread / kTile;
    const int position = exl3::tile_position(thread / kTile, thread % kTile);
    const int64_t at = int64_t{blockIdx.x} * kTileSize + position;
    uint16_t* states =
        group.states + rows.block * group.n * kTile + int64_t{blockIdx.x % kGroupTiles} * kTileSize;
    const auto* values = reinterpret_cast<const __half*>(table);
    const float decoded = __half2float(values[rows.states[at]]);
    if (rows.sweep) {
        if (!group.has_hessian) return;  // nothing to make up for
        const float* metric = group.hessian.sweep_metric + rows.block * kTileSize;
        s_difference[thread] = rows.tiles[at] - __half2float(values[states[position]]);
        __syncthreads();
        const double before = weighed(s_difference, metric, s_terms, thread);
        s_difference[thread] = rows.tiles[at] - decoded;
        __syncthreads();
        const double behind = weighed(s_difference, metric, s_terms, thread);
        if (thread == 0) s_better = behind < before;
        __syncthreads();
        if (!s_better) return;
    }
    states[position] = rows.states[at];
    group.errors[row * group.n + column] = group.weights[row * group.n + column] - decoded;
}

// Blocks of 256 threads: 128 columns of one row block, errors and weights.
__global__ void __launch_bounds__(kTileSize) measure_kernel(const ColumnGroup* groups, int64_t k) {
    __shared__ float s_values[2][kGroupTiles][kTileSize];
    __shared__ double s_terms[kTileSize];
    const ColumnGroup& group = groups[blockIdx.x];
    const int64_t block = blockIdx.y;
    const int64_t first = block * kTile;
    const int thread = static_cast<int>(threadIdx.x);
    const int column = thread % kGroupColumns;
    const int which = thread / kGroupColumns;
    const float* from = (which == 0 ? group.errors : group.weights) + column;
    float sum[kTile];
#pragma unroll
    for (int r = 0; r < kTile; ++r) sum[r] = from[(first + r) * group.n];
    const float* metric = nullptr;
    if (group.has_hessian) {
        const int64_t behind = first + kTile;
        feed_back(sum, group.hessian.feedback + (block * k + behind) * kTile,
                  from + behind * group.n, group.n, k - behind);
        metric = group.hessian.metric + block * kTileSize;
    }
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        s_values[which][column / kTile][r * kTile + column % kTile] = sum[r];
    }
    __syncthreads();
    for (int tile = 0; tile < kGroupTiles; ++tile) {
        for (int of = 0; of < 2; ++of) {
            const double result = weighed(s_values[of][tile], metric, s_terms, thread);
            if (thread != 0) continue;
            (of == 0 ? group.error : group.energy)[tile * (k / kTile) + block] = result;
        }
    }
}

}  // namespace

void gather_targets(const RowBlock& rows, LaunchStream stream) {
    gather_kernel<<<static_cast<unsigned>(rows.group_count), kGroupColumns, 0, stream>>>(rows);
    LAUNCH_CHECK();
}

void keep_states(const RowBlock& rows, const F16* table, LaunchStream stream) {
    keep_kernel<<<static_cast<unsigned>(rows.group_count * kGroupTiles), kTileSize, 0, stream>>>(
        rows, table);
    LAUNCH_CHECK();
}

void measure(const ColumnGroup* groups, int32_t group_count, int64_t k, LaunchStream stream) {
    const dim3 grid(static_cast<unsigned>(group_count), static_cast<unsigned>(k / kTile));
    measure_kernel<<<grid, kTileSize, 0, stream>>>(groups, k);
    LAUNCH_CHECK();
}

}  // namespace quadrille::cuda
