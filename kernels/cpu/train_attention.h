// SPDX-License-Identifier: Apache-2.0
// Attention of draft blocks on the CPU, forward and backward: rows of a block see context below
// their anchor and the rows of their own block. Probabilities are computed again on the way back.
// Internal linkage, as train_product.h.
#pragma once

#include "kernels/cpu/train_product.h"

#include <cmath>
#include <limits>

namespace quadrille::cpu {
namespace {

// The keys that one row of a block sees: context rows [first, first + count) and the block's rows
// [0, own).
struct SeenKeys {
    int64_t first = 0, count = 0, own = 0;
};

inline SeenKeys keys_of(const TrainSequence& sequence, int64_t anchor, int64_t row,
                        const AttentionShape& shape, int64_t block) {
    const int64_t begin =
        shape.window > 0 ? std::max<int64_t>(0, anchor + row - shape.window + 1) : 0;
    return {sequence.context_begin + std::min(begin, anchor), anchor - std::min(begin, anchor),
            shape.causal ? row + 1 : block};
}

// Probabilities of one row and head over its keys, context first.
template <class T>
void probabilities(T* p, const T* q, const AttentionInputs<T>& in, const SeenKeys& keys,
                   int64_t block_begin, int64_t at, int64_t dim) {
    const T scale = T{1} / std::sqrt(static_cast<T>(dim));
    T largest = -std::numeric_limits<T>::infinity();
    for (int64_t j = 0; j < keys.count + keys.own; ++j) {
        const T* k = j < keys.count ? in.context_k.row(keys.first + j)
                                    : in.k.row(block_begin + j - keys.count);
        p[j] = dot(q, k + at, dim) * scale;
        largest = std::max(largest, p[j]);
    }
    T sum = 0;
    for (int64_t j = 0; j < keys.count + keys.own; ++j) {
        p[j] = std::exp(p[j] - largest);
        sum += p[j];
    }
    for (int64_t j = 0; j < keys.count + keys.own; ++j) p[j] /= sum;
}

// What one row and head works on.
template <class Visit>
void each_row_and_head(const AttentionShape& shape, const BlockPlan& plan, const Visit& visit) {
    for (const TrainSequence& sequence : plan.sequences) {
        for (int64_t b = sequence.block_begin; b < sequence.block_begin + sequence.blocks; ++b) {
            for (int64_t row = 0; row < plan.block; ++row) {
                const SeenKeys keys = keys_of(sequence, plan.anchor[b], row, shape, plan.block);
                for (int64_t head = 0; head < shape.heads; ++head) {
                    const int64_t kv = head / (shape.heads / shape.kv_heads);
                    visit(b * plan.block, b * plan.block + row, keys, head * shape.dim,
                          kv * shape.dim);
                }
            }
        }
    }
}

inline int64_t most_keys(const BlockPlan& plan) {
    int64_t most = 0;
    for (const TrainSequence& s : plan.sequences) most = std::max(most, s.context_rows);
    return most + plan.block;
}

template <class T>
void attention_rows(View<T> out, const AttentionInputs<T>& in, const AttentionShape& shape,
                    const BlockPlan& plan) {
    const Room<T> p(most_keys(plan));
    each_row_and_head(
        shape, plan,
        [&](int64_t block, int64_t row, const SeenKeys& keys, int64_t q_at, int64_t kv_at) {
            probabilities(p.data(), in.q.row(row) + q_at, in, keys, block, kv_at, shape.dim);
            T* y = out.row(row) + q_at;
            std::fill(y, y + shape.dim, T{0});
            for (int64_t j = 0; j < keys.count + keys.own; ++j) {
                const T* v = j < keys.count ? in.context_v.row(keys.first + j)
                                            : in.v.row(block + j - keys.count);
                add_scaled(y, v + kv_at, p[j], shape.dim);
            }
        });
}

template <class T>
void clear_rows(View<T> x) {
    for (int64_t i = 0; i < x.rows; ++i) std::fill(x.row(i), x.row(i) + x.cols, T{0});
}

// ds_j = p_j (dp_j - sum p dp), dp_j = dout v_j.
template <class T>
void attention_back_rows(const AttentionGradients<T>& to, View<const T> dout,
                         const AttentionInputs<T>& in, const AttentionShape& shape,
                         const BlockPlan& plan) {
    for (const View<T>& x : {to.q, to.k, to.v, to.context_k, to.context_v}) clear_rows(x);
    const Room<T> p(most_keys(plan)), ds(most_keys(plan));
    const T scale = T{1} / std::sqrt(static_cast<T>(shape.dim));
    each_row_and_head(
        shape, plan,
        [&](int64_t block, int64_t row, const SeenKeys& keys, int64_t q_at, int64_t kv_at) {
            const T* q = in.q.row(row) + q_at;
            const T* dy = dout.row(row) + q_at;
            probabilities(p.data(), q, in, keys, block, kv_at, shape.dim);
            const int64_t all = keys.count + keys.own;
            T mean = 0;
            for (int64_t j = 0; j < all; ++j) {
                const bool context = j < keys.count;
                const int64_t at = context ? keys.first + j : block + j - keys.count;
                ds[j] = dot(dy, (context ? in.context_v : in.v).row(at) + kv_at, shape.dim);
                mean += p[j] * ds[j];
                add_scaled((context ? to.context_v : to.v).row(at) + kv_at, dy, p[j], shape.dim);
            }
            for (int64_t j = 0; j < all; ++j) {
                const bool context = j < keys.count;
                const int64_t at = context ? keys.first + j : block + j - keys.count;
                const T d = p[j] * (ds[j] - mean) * scale;
                add_scaled(to.q.row(row) + q_at, (context ? in.context_k : in.k).row(at) + kv_at, d,
                           shape.dim);
                add_scaled((context ? to.context_k : to.k).row(at) + kv_at, q, d, shape.dim);
            }
        });
}

}  // namespace
}  // namespace quadrille::cpu
