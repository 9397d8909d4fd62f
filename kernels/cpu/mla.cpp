// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in absorbed form: queries are taken into the latent space once per
// row and head, all heads attend to the same latents, values come out of the latent space last.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/loops.h"

#include <cmath>
#include <cstdint>

namespace quadrille::cpu {

namespace {

constexpr int64_t kRowChunk = 16;  // rows that share one reading of kv_b

// The positions of one row: `list`, or 0..count-1 without one.
struct Attended {
    const float* latents;  // of its slot
    const int32_t* list;
    int64_t count;
    int64_t r;
    const float* latent(int64_t i) const { return latents + (list != nullptr ? list[i] : i) * r; }
};

// sums[h] += probabilities[h][i] * latent_i over one block of positions, finished before it is
// added. probabilities (heads, count).
void weigh_block(float* sums, float* block, const float* probabilities, const Attended& set,
                 int64_t first, int64_t end, int64_t heads) {
    for (int64_t h = 0; h < heads; ++h) {
        const float* p = probabilities + h * set.count;
        std::fill_n(block, set.r, 0.0f);
        int64_t i = first;
        for (; i + 4 <= end; i += 4) {
            add_scaled4(block, p + i, set.latent(i), set.latent(i + 1), set.latent(i + 2),
                        set.latent(i + 3), set.r);
        }
        for (; i < end; ++i) add_scaled(block, p[i], set.latent(i), set.r);
        add_scaled(sums + h * set.r, 1.0f, block, set.r);
    }
}

// sums (heads, r) = softmax(queries . latents * scale) latents for one row; queries (heads, r).
void attend(float* sums, const float* queries, float* scores, float* block, const Attended& set,
            int64_t heads, float scale) {
    const int64_t n = set.count;
    for (int64_t first = 0; first < n; first += kPositionBlock) {
        const int64_t end = std::min(n, first + kPositionBlock);
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = first; i < end; ++i) {
                scores[h * n + i] = dot(queries + h * set.r, set.latent(i), set.r) * scale;
            }
        }
    }
    std::fill_n(sums, heads * set.r, 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
        const float inverse = 1.0f / exp_of_scores(scores + h * n, n);
        for (int64_t i = 0; i < n; ++i) scores[h * n + i] *= inverse;
    }
    for (int64_t first = 0; first < n; first += kPositionBlock) {
        weigh_block(sums, block, scores, set, first, std::min(n, first + kPositionBlock), heads);
    }
}

// queries (rows, heads, r): q'[h] = sum over the head's key rows of q * kv_b row.
void absorb_queries(float* queries, float* weight, View<const float> query, const Matrix& kv_b,
                    const MlaParams& params) {
    const int64_t r = kv_b.k;
    const int64_t heads = params.heads;
    std::fill_n(queries, query.rows * heads * r, 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
        const int64_t first = h * (params.key_dim + params.value_dim);
        for (int64_t j = 0; j < params.key_dim; ++j) {
            convert_row(weight, kv_b, first + j);
            for (int64_t i = 0; i < query.rows; ++i) {
                add_scaled(queries + (i * heads + h) * r, query.row(i)[h * params.key_dim + j],
                           weight, r);
            }
        }
    }
}

// out[h][j] = value row j of the head . sums[h]
void expand_values(View<float> out, float* weight, const float* sums, const Matrix& kv_b,
                   const MlaParams& params) {
    const int64_t r = kv_b.k;
    const int64_t heads = params.heads;
    for (int64_t h = 0; h < heads; ++h) {
        const int64_t first = h * (params.key_dim + params.value_dim) + params.key_dim;
        for (int64_t j = 0; j < params.value_dim; ++j) {
            convert_row(weight, kv_b, first + j);
            for (int64_t i = 0; i < out.rows; ++i) {
                out.row(i)[h * params.value_dim + j] = dot(weight, sums + (i * heads + h) * r, r);
            }
        }
    }
}

}  // namespace

void CpuBackend::latent_append(View<float> latents, View<const float> latent, const Rows& rows) {
    const int64_t r = latent.cols;
    require(latent.rows == rows.m, "latent_append: latent (m, r)");
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

void CpuBackend::mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                               View<const float> latents, View<const int32_t> selected,
                               const int32_t* count, const MlaParams& params, const Rows& rows) {
    const int64_t heads = params.heads;
    const int64_t r = params.latent_dim;
    require(kv_b.weights != nullptr && kv_b.n == heads * (params.key_dim + params.value_dim) &&
                kv_b.k == r,
            "mla_attention: kv_b is native (heads (key_dim + value_dim), latent_dim)");
    require(out.rows == rows.m && query.rows == rows.m && out.cols == heads * params.value_dim &&
                query.cols == heads * params.key_dim,
            "mla_attention: out (m, heads value_dim), query (m, heads key_dim)");
    const float scale = 1.0f / std::sqrt(static_cast<float>(params.key_dim));
    float* weight = scratch(kWeightScratch, r);
    float* queries = scratch(kQueryScratch, kRowChunk * heads * r);
    float* sums = scratch(kSumScratch, kRowChunk * heads * r);
    float* block = scratch(kPartScratch, r);
    for (int64_t first = 0; first < rows.m; first += kRowChunk) {
        const int64_t chunk = std::min<int64_t>(kRowChunk, rows.m - first);
        absorb_queries(queries, weight, query.slice_rows(first, chunk), kv_b, params);
        for (int64_t j = 0; j < chunk; ++j) {
            const int64_t row = first + j;
            const int32_t sequence = rows.row_sequence[row];
            if (rows.slot[sequence] < 0) continue;
            const int64_t visible = rows.position[sequence] + (row - rows.begin[sequence]) + 1;
            require(rows.slot[sequence] < latents.rows && visible * r <= latents.cols,
                    "mla_attention: the positions fit their slot");
            Attended set{latents.row(rows.slot[sequence]), nullptr, visible, r};
            if (count[row] >= 0) {
                set.list = selected.row(row);
                set.count = count[row];
                require(set.count > 0 && set.count <= selected.cols && set.list[0] >= 0 &&
                            set.list[set.count - 1] < visible,
                        "mla_attention: a row attends to some of the positions up to its own");
            }
            attend(sums + j * heads * r, queries + j * heads * r,
                   scratch(kScoreScratch, heads * set.count), block, set, heads, scale);
        }
        expand_values(out.slice_rows(first, chunk), weight, sums, kv_b, params);
    }
    for (int64_t row = 0; row < rows.m; ++row) {
        if (rows.slot[rows.row_sequence[row]] < 0) std::fill_n(out.row(row), out.cols, 0.0f);
    }
}

}  // namespace quadrille::cpu
