// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in absorbed form: queries are taken into the latent space once per
// row and head, all heads attend to the same latents, values come out of the latent space last.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quadrille::cpu {

namespace {

constexpr int64_t kRowChunk = 16;  // rows that share one reading of kv_b

// The matrix of rows [first, first + count) of a native one.
Matrix rows_of(const Matrix& matrix, int64_t first, int64_t count) {
    Matrix part = matrix;
    part.n = count;
    part.segments = 1;
    part.bias = nullptr;
    part.weights =
        static_cast<const char*>(matrix.weights) + first * matrix.k * size_of(matrix.dtype);
    return part;
}

}  // namespace

void CpuBackend::latent_append(View<float> latents, View<const float> latent, const Rows& rows) {
    contract::latent_append(latents, latent, rows);
    const int64_t r = latent.cols;
    for (int32_t i = 0; i < rows.sequences; ++i) {
        if (rows.slot[i] < 0) continue;
        const int64_t count = rows.begin[i + 1] - rows.begin[i];
        require(rows.slot[i] < latents.rows && (rows.position[i] + count) * r <= latents.cols,
                "latent_append: the rows fit their slot");
        float* to = latents.row(rows.slot[i]) + rows.position[i] * r;
        for (int64_t j = 0; j < count; ++j) {
            std::copy_n(latent.row(rows.begin[i] + j), r, to + j * r);
        }
    }
}

// key_places_ = the latents (capacity, r) one row attends to: the `count` listed ones, or all
// `visible` where count is negative.
void CpuBackend::place_latents(View<const float> latents, int64_t visible, const int32_t* list,
                               int64_t count) {
    require(visible <= latents.rows, "mla_attention: the positions fit their slot");
    key_places_.clear();
    if (count < 0) {
        for (int64_t i = 0; i < visible; ++i) key_places_.push_back(latents.row(i));
        return;
    }
    require(count > 0 && list[0] >= 0 && list[count - 1] < visible,
            "mla_attention: a row attends to some of the positions up to its own");
    for (int64_t i = 0; i < count; ++i) key_places_.push_back(latents.row(list[i]));
}

void CpuBackend::mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                               View<const float> latents, View<const int32_t> selected,
                               const int32_t* count, const MlaParams& params, const Rows& rows) {
    contract::mla_attention(out, query, kv_b, latents, selected, count, params, rows);
    const int64_t heads = params.heads;
    const int64_t r = params.latent_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(params.key_dim));
    const int64_t per_head = params.key_dim + params.value_dim;
    float* queries = scratch(kQueryScratch, kRowChunk * heads * r);
    float* sums = scratch(kSumScratch, kRowChunk * heads * r);
    Attention attention{.heads = heads, .d = r, .width = r, .scale = scale};
    Combination absorb{.x_stride = query.stride, .matrix = &kv_b, .count = params.key_dim};
    absorb.scratch = scratch(kWeightScratch, kCombinedRows * r);
    for (int64_t first = 0; first < rows.m; first += kRowChunk) {
        const int64_t chunk = std::min<int64_t>(kRowChunk, rows.m - first);
        std::fill_n(queries, chunk * heads * r, 0.0f);
        absorb.m = chunk;
        for (int64_t h = 0; h < heads; ++h) {
            absorb.x = query.row(first) + h * params.key_dim;
            absorb.first = h * per_head;
            sequence_->combine(queries + h * r, heads * r, absorb);
        }
        for (int64_t j = 0; j < chunk; ++j) {
            const int32_t sequence = rows.row_sequence[first + j];
            if (rows.slot[sequence] < 0) continue;
            require(rows.slot[sequence] < latents.rows, "mla_attention: the slot exists");
            const int64_t visible =
                rows.position[sequence] + (first + j - rows.begin[sequence]) + 1;
            place_latents({latents.row(rows.slot[sequence]), latents.cols / r, r}, visible,
                          selected.row(first + j),
                          std::min<int64_t>(count[first + j], selected.cols));
            attention.n = std::ssize(key_places_);
            attention.keys = key_places_.data();
            attention.values = attention.keys;
            attention.query = queries + j * heads * r;
            attention.scores = scratch(kScoreScratch, heads * attention.n);
            sequence_->attend(sums + j * heads * r, attention);
        }
        for (int64_t h = 0; h < heads; ++h) {
            linear(out.slice_rows(first, chunk).slice_cols(h * params.value_dim, params.value_dim),
                   {sums + h * r, chunk, r, heads * r},
                   rows_of(kv_b, h * per_head + params.key_dim, params.value_dim));
        }
    }
    for (int64_t row = 0; row < rows.m; ++row) {
        if (rows.slot[rows.row_sequence[row]] < 0) std::fill_n(out.row(row), out.cols, 0.0f);
    }
}

}  // namespace quadrille::cpu
