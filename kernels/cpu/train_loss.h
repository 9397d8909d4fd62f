// SPDX-License-Identifier: Apache-2.0
// Losses of draft rows over the vocabulary, the hidden cosine and the candidate selector on the
// CPU, forward and backward. Internal linkage, as train_product.h.
#pragma once

#include "kernels/cpu/train_product.h"

#include <cmath>

namespace quadrille::cpu {
namespace {

template <class T>
int64_t place_of_largest(const T* z, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i) {
        if (z[i] > z[best]) best = i;
    }
    return best;
}

template <class T>
T log_sum_exp(const T* z, int64_t count) {
    const T largest = z[place_of_largest(z, count)];
    double sum = 0;
    for (int64_t v = 0; v < count; ++v) sum += static_cast<double>(std::exp(z[v] - largest));
    return largest + static_cast<T>(std::log(sum));
}

template <class T>
void loss_rows_of(const RowLosses<T>& out, View<const T> logits, const int32_t* label,
                  const Teacher<T>& teacher, View<const T> reference) {
    for (int64_t i = 0; i < logits.rows; ++i) {
        const T* z = logits.row(i);
        const T lse = log_sum_exp(z, logits.cols);
        out.lse[i] = lse;
        out.ce[i] = lse - z[label[i]];
        const T* t = teacher.logits.row(i);
        const T teacher_lse = log_sum_exp(t, teacher.logits.cols);
        double kl = 0;
        for (int64_t j = 0; j < teacher.logits.cols; ++j) {
            const T log_p = t[j] - teacher_lse;
            kl += static_cast<double>(std::exp(log_p) * (log_p - (z[teacher.ids.row(i)[j]] - lse)));
        }
        out.kl[i] = static_cast<T>(kl);
        if (reference.data == nullptr) continue;
        const T* r = reference.row(i);
        const T reference_lse = log_sum_exp(r, logits.cols);
        double trust = 0;
        for (int64_t v = 0; v < logits.cols; ++v) {
            trust +=
                static_cast<double>(std::exp(z[v] - lse) * ((z[v] - lse) - (r[v] - reference_lse)));
        }
        out.trust[i] = static_cast<T>(trust);
    }
}

template <class T>
void loss_back_of(View<T> logits, const RowLosses<T>& rows, const RowWeights<T>& weights,
                  const int32_t* label, const Teacher<T>& teacher, View<const T> reference) {
    for (int64_t i = 0; i < logits.rows; ++i) {
        T* z = logits.row(i);
        const T own = weights.ce[i] + weights.kl[i];
        const bool trusts = reference.data != nullptr && weights.trust[i] != T{0};
        const T* r = trusts ? reference.row(i) : nullptr;
        const T reference_lse = trusts ? log_sum_exp(r, logits.cols) : T{0};
        for (int64_t v = 0; v < logits.cols; ++v) {
            const T log_p = z[v] - rows.lse[i];
            const T p = std::exp(log_p);
            z[v] = own * p;
            if (trusts) {
                z[v] += weights.trust[i] * p * (log_p - (r[v] - reference_lse) - rows.trust[i]);
            }
        }
        z[label[i]] -= weights.ce[i];
        if (weights.kl[i] == T{0}) continue;
        const T* t = teacher.logits.row(i);
        const T teacher_lse = log_sum_exp(t, teacher.logits.cols);
        for (int64_t j = 0; j < teacher.logits.cols; ++j) {
            z[teacher.ids.row(i)[j]] -= weights.kl[i] * std::exp(t[j] - teacher_lse);
        }
    }
}

template <class T>
void cosine_rows(T* hidden, View<const T> x, View<const T> y) {
    for (int64_t i = 0; i < x.rows; ++i) {
        const T xx = dot(x.row(i), x.row(i), x.cols);
        const T yy = dot(y.row(i), y.row(i), x.cols);
        hidden[i] = T{1} - dot(x.row(i), y.row(i), x.cols) / std::sqrt(xx * yy);
    }
}

// d cos / dx = (y / |y| - cos x / |x|) / |x|.
template <class T>
void cosine_back_rows(View<T> dx, View<const T> x, View<const T> y, const T* weight) {
    for (int64_t i = 0; i < x.rows; ++i) {
        if (weight[i] == T{0}) continue;
        const T xx = dot(x.row(i), x.row(i), x.cols);
        const T yy = dot(y.row(i), y.row(i), x.cols);
        const T xy = dot(x.row(i), y.row(i), x.cols);
        const T both = std::sqrt(xx * yy);
        add_scaled(dx.row(i), y.row(i), -weight[i] / both, x.cols);
        add_scaled(dx.row(i), x.row(i), weight[i] * xy / (both * xx), x.cols);
    }
}

template <class T>
void top_k_rows(View<T> values, View<int32_t> ids, View<const T> logits) {
    const int64_t k = values.cols;
    const Room<int32_t> order(logits.cols);
    for (int64_t i = 0; i < logits.rows; ++i) {
        const T* z = logits.row(i);
        for (int32_t v = 0; v < logits.cols; ++v) order[v] = v;
        const auto better = [z](int32_t a, int32_t b) {
            return z[a] > z[b] || (z[a] == z[b] && a < b);
        };
        int32_t* first = order.data();
        std::nth_element(first, first + k - 1, first + logits.cols, better);
        std::sort(first, first + k, better);
        for (int64_t j = 0; j < k; ++j) {
            ids.row(i)[j] = order[j];
            values.row(i)[j] = z[order[j]];
        }
    }
}

// g = A[before] P h, then the scores; `gated` has room for the rank.
template <class T>
void selector_scores(T* scores, T* gated, const Selector16<T>& in, int64_t row) {
    const int64_t rank = in.projected.cols;
    const T* a = in.predecessor.row(in.before[row]);
    for (int64_t r = 0; r < rank; ++r) gated[r] = a[r] * in.projected.row(row)[r];
    for (int64_t c = 0; c < in.ids.cols; ++c) {
        scores[c] = in.scores.row(row)[c] + dot(gated, in.successor.row(in.ids.row(row)[c]), rank);
    }
}

template <class T>
void selector_rows(View<T> probabilities, T* loss, int32_t* best, const Selector16<T>& in) {
    const Room<T> gated(in.projected.cols);
    for (int64_t i = 0; i < in.ids.rows; ++i) {
        T* s = probabilities.row(i);
        selector_scores(s, gated.data(), in, i);
        best[i] = static_cast<int32_t>(place_of_largest(s, in.ids.cols));
        const T lse = log_sum_exp(s, in.ids.cols);
        loss[i] = T{-1};
        for (int64_t c = 0; c < in.ids.cols; ++c) {
            if (in.ids.row(i)[c] == in.label[i]) loss[i] = lse - s[c];
            s[c] = std::exp(s[c] - lse);
        }
    }
}

template <class T>
void selector_back_rows(View<T> dlogits, View<T> dprojected, View<T> errors,
                        View<const T> probabilities, const T* weight, const Selector16<T>& in) {
    const int64_t rank = in.projected.cols;
    const Room<T> dgated(rank);
    for (int64_t i = 0; i < in.ids.rows; ++i) {
        std::fill(dgated.data(), dgated.data() + rank, T{0});
        for (int64_t c = 0; c < in.ids.cols; ++c) {
            const int32_t id = in.ids.row(i)[c];
            const T hit = id == in.label[i] ? T{1} : T{0};
            const T e = weight[i] == T{0} ? T{0} : weight[i] * (probabilities.row(i)[c] - hit);
            errors.row(i)[c] = e;
            dlogits.row(i)[id] += e;
            add_scaled(dgated.data(), in.successor.row(id), e, rank);
        }
        const T* a = in.predecessor.row(in.before[i]);
        for (int64_t r = 0; r < rank; ++r) {
            dprojected.row(i)[r] = dgated[r] * a[r];
        }
    }
}

template <class T>
void codebooks_back_rows(View<T> dpredecessor, View<T> dsuccessor, View<const T> errors,
                         const Selector16<T>& in, const RowLists& before,
                         const RowLists& candidates) {
    const int64_t rank = in.projected.cols;
    const int64_t width = in.ids.cols;
    for (int64_t u = 0; u < before.count; ++u) {
        T* to = dpredecessor.row(before.tokens[u]);
        for (int32_t n = before.offsets[u]; n < before.offsets[u + 1]; ++n) {
            const int64_t row = before.entries[n];
            for (int64_t c = 0; c < width; ++c) {
                const T e = errors.row(row)[c];
                const T* b = in.successor.row(in.ids.row(row)[c]);
                for (int64_t r = 0; r < rank; ++r) to[r] += e * b[r] * in.projected.row(row)[r];
            }
        }
    }
    for (int64_t u = 0; u < candidates.count; ++u) {
        T* to = dsuccessor.row(candidates.tokens[u]);
        for (int32_t n = candidates.offsets[u]; n < candidates.offsets[u + 1]; ++n) {
            const int64_t row = candidates.entries[n] / width;
            const T e = errors.row(row)[candidates.entries[n] % width];
            const T* a = in.predecessor.row(in.before[row]);
            for (int64_t r = 0; r < rank; ++r) to[r] += e * a[r] * in.projected.row(row)[r];
        }
    }
}

}  // namespace
}  // namespace quadrille::cpu
