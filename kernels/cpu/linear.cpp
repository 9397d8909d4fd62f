// SPDX-License-Identifier: Apache-2.0
// linear: products with native and EXL3 matrices, one segment of the inputs at a time. The loops
// that take time are in the Paths; here are shapes, rotations, and the order of the segments.
#include "kernels/contract.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/lanes.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <algorithm>
#include <array>

namespace quadrille::cpu {

namespace {

constexpr int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// rotated (m, width): H (x * suh) of the channels [first, first + x.cols), zeros behind them.
void rotate_inputs(float* rotated, int64_t width, View<const float> x, const F16* suh,
                   const Paths& paths) {
    std::array<float, exl3::kBlock> scale;
    for (int64_t k = 0; k < width; k += exl3::kBlock) {
        const int64_t count = std::min<int64_t>(exl3::kBlock, x.cols - k);
        convert(scale.data(), suh + k, count);
        for (int64_t r = 0; r < x.rows; ++r) {
            const float* from = x.row(r) + k;
            float* to = rotated + r * width + k;
            for (int64_t i = 0; i < count; ++i) {
                to[i] = from[i] * scale[static_cast<size_t>(i)];
            }
            std::fill(to + count, to + exl3::kBlock, 0.0f);
        }
    }
    paths.hadamard(rotated, x.rows * width / exl3::kBlock);
}

// Columns [n, n + count) of out = (H acc) * svh; acc (m, 128).
void rotate_outputs(View<float> out, int64_t n, float* acc, const F16* svh, const Paths& paths) {
    const int64_t count = std::min<int64_t>(exl3::kBlock, out.cols - n);
    std::array<float, exl3::kBlock> scale;
    convert(scale.data(), svh + n, count);
    paths.hadamard(acc, out.rows);
    for (int64_t r = 0; r < out.rows; ++r) {
        const float* from = acc + r * exl3::kBlock;
        float* to = out.row(r) + n;
        for (int64_t i = 0; i < count; ++i) to[i] = from[i] * scale[static_cast<size_t>(i)];
    }
}

}  // namespace

std::array<int64_t, 2> segment_bounds(const Matrix& weight, int32_t segment) {
    if (weight.segments == 1) return {0, weight.k};
    const auto s = static_cast<size_t>(segment);
    return {weight.segment[s], weight.segment[s + 1]};
}

void CpuBackend::segment_product(View<float> out, View<const float> in, const Matrix& weight,
                                 int32_t segment) {
    const auto [first, last] = segment_bounds(weight, segment);
    const View<const float> x = in.slice_cols(first, last - first);
    if (!weight.is_exl3()) {
        NativeRows rows{.x = x.data, .x_stride = x.stride, .m = x.rows, .matrix = &weight};
        rows.first = first;
        rows.k = x.cols;
        rows.scratch = scratch(kNativeScratch, kNativeScratchRows * x.cols);
        paths_->native_rows(out.data, out.stride, rows);
        return;
    }
    const int64_t width = round_up(x.cols, exl3::kBlock);
    const int64_t words = 2 * exl3::tile_words(weight.bits);
    float* rotated = scratch(kRotatedScratch, x.rows * width);
    float* acc = scratch(kBlockScratch, x.rows * exl3::kBlock);
    rotate_inputs(rotated, width, x, weight.suh + first, *paths_);
    Exl3Block block{.x = rotated, .x_stride = width, .m = x.rows};
    block.trellis_stride = weight.n_padded / exl3::kTile * words;
    block.blocks = width / exl3::kBlock;
    block.bits = weight.bits;
    block.codebook = weight.codebook;
    block.weights = codebooks_[static_cast<size_t>(weight.codebook)].data();
    for (int64_t n = 0; n < weight.n; n += exl3::kBlock) {
        block.trellis =
            weight.trellis + first / exl3::kTile * block.trellis_stride + n / exl3::kTile * words;
        paths_->exl3_block(acc, block);
        rotate_outputs(out, n, acc, weight.svh, *paths_);
    }
}

void CpuBackend::linear(View<float> out, View<const float> in, const Matrix& weight) {
    contract::linear(out, in, weight);
    if (weight.segments == 1) {
        segment_product(out, in, weight, 0);
    } else {
        const int64_t part = out.rows * weight.n;
        float* parts = scratch(kSegmentScratch, weight.segments * part);
        for (int32_t s = 0; s < weight.segments; ++s) {
            segment_product({parts + s * part, out.rows, weight.n}, in, weight, s);
        }
        tree_sum(out, parts, weight.segments, part);
    }
    if (weight.bias == nullptr) return;
    for (int64_t r = 0; r < out.rows; ++r) {
        for (int64_t c = 0; c < out.cols; ++c) out.row(r)[c] += weight.bias[c];
    }
}

void native_rows_plain(float* out, int64_t out_stride, const NativeRows& rows) {
    const Matrix& matrix = *rows.matrix;
    for (int64_t n = 0; n < matrix.n; ++n) {
        const float* w = rows.scratch;
        if (matrix.dtype == Dtype::f32) {
            w = static_cast<const float*>(matrix.weights) + n * matrix.k + rows.first;
        } else {
            convert_row(rows.scratch, matrix, n, rows.first, rows.k);
        }
        for (int64_t r = 0; r < rows.m; ++r) {
            out[r * out_stride + n] = dot(rows.x + r * rows.x_stride, w, rows.k);
        }
    }
}

void CpuBackend::linears(std::span<const Product> group) {
    contract::linears(group);
    for (const Product& product : group) linear(product.out, product.in, product.weight);
}

}  // namespace quadrille::cpu
