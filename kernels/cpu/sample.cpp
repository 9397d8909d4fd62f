// SPDX-License-Identifier: Apache-2.0
// Draws from rows of logits: penalty, temperature and noise of one column at a time, so that what a
// row gives depends neither on its company nor on how the columns are shared.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"
#include "kernels/sample_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

namespace quadrille::cpu {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Best {
    double score = -std::numeric_limits<double>::infinity();
    int32_t column = -1;
};

struct Columns {
    const float* logits;
    int32_t first_id;
    int32_t valid;
    const int32_t* excluded;
    int64_t excluded_count;

    bool skips(int32_t column) const {
        const int32_t* const end = excluded + excluded_count;
        return std::find(excluded, end, first_id + column) != end;
    }
};

// As argmax: a row of -inf alone has its first column.
Best best_greedy(const SampleRow& row, const Columns& columns) {
    Best best;
    float value = kNothing;
    for (int32_t c = 0; c < columns.valid; ++c) {
        const float logit = logit_of(row, columns.logits[c], columns.first_id + c);
        const bool better = logit > value || (best.column < 0 && logit == value);
        if (!better || columns.skips(c)) continue;
        value = logit;
        best = {double{logit}, c};
    }
    return best;
}

Best best_drawn(const SampleRow& row, const Columns& columns) {
    Best best;
    const auto offer = [&](int32_t c, uint64_t bits) {
        const float logit = logit_of(row, columns.logits[c], columns.first_id + c);
        if (!(logit > kNothing)) return;
        const double base = scaled(logit, row.inverse_temperature);
        if (base + gumbel_bound(bits) < best.score) return;
        const double score = base + gumbel_of(bits);
        if ((best.column >= 0 && !(score > best.score)) || columns.skips(c)) return;
        best = {score, c};
    };
    // Ids 2i and 2i + 1 share a block of noise; the first id of a rank is even.
    for (int32_t c = 0; c < columns.valid; c += 2) {
        const auto pair = static_cast<uint32_t>(columns.first_id + c) >> 1;
        const NoiseBits bits = noise_bits(row.seed, row.position, row.stream, pair);
        offer(c, bits.even);
        if (c + 1 < columns.valid) offer(c + 1, bits.odd);
    }
    return best;
}

using Kept = std::pair<float, int32_t>;  // l' and column or id

// The better of two candidates comes first.
bool before(const Kept& a, const Kept& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
}

size_t count_kept(std::span<const Kept> sorted, const SampleRow& row) {
    const double inverse = row.inverse_temperature;
    if (row.top_k > 0) {
        sorted = sorted.first(std::min(sorted.size(), static_cast<size_t>(row.top_k)));
    }
    size_t kept = sorted.size();
    if (row.top_p < 1.0) {
        ExpSum total;
        for (const Kept& one : sorted) total.add(weight_of(one.first, inverse));
        ExpSum sum;
        for (size_t i = 0; i < kept; ++i) {
            sum.add(weight_of(sorted[i].first, inverse));
            if (reaches(sum, row.top_p, total)) kept = i + 1;
        }
    }
    if (row.min_p > 0.0) {
        for (size_t i = 1; i < kept; ++i) {
            if (!weighs(sorted[i].first, row.min_p, sorted[0].first, inverse)) kept = i;
        }
    }
    return kept;
}

int32_t draw_among(std::span<const Kept> kept, const SampleRow& row) {
    int32_t best = -1;
    double best_score = 0.0;
    for (const auto& [value, id] : kept) {
        const double score =
            scaled(value, row.inverse_temperature) + gumbel(row.seed, row.position, row.stream, id);
        if (best >= 0 && (score < best_score || (score == best_score && id > best))) continue;
        best = id;
        best_score = score;
    }
    return best;
}

void check_row(View<const float> logits, const SampleRow& row) {
    require(row.row >= 0 && row.row < logits.rows, "sampling: a row of the logits");
}

}  // namespace

void CpuBackend::mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                           int32_t count) {
    contract::mark_seen(seen, slots, tokens, count);
    for (int32_t i = 0; i < count; ++i) {
        const auto id = static_cast<uint32_t>(tokens[i]);
        require(slots[i] >= 0 && slots[i] < seen.rows && tokens[i] >= 0 && id / 32 < seen.cols,
                "mark_seen: slot and token inside seen (slots, words)");
        seen.row(slots[i])[id / 32] |= 1u << (id % 32);
    }
}

void CpuBackend::sample(double* score, int32_t* id, float* logit, const SampleInput& in,
                        View<const int32_t> excluded) {
    contract::sample(score, id, logit, in, excluded);
    const auto& [logits, rows, count, first_id, valid] = in;
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        const Columns columns{logits.row(rows[i].row), first_id, valid,
                              excluded.cols == 0 ? nullptr : excluded.row(i), excluded.cols};
        const bool greedy = rows[i].inverse_temperature == 0.0;
        const Best best = greedy ? best_greedy(rows[i], columns) : best_drawn(rows[i], columns);
        score[i] = best.score;
        id[i] = best.column < 0 ? -1 : first_id + best.column;
        logit[i] = best.column < 0 ? kNothing : columns.logits[best.column];
    }
}

// By its definition: the row is sorted, cut and drawn from.
void CpuBackend::sample_filtered(int32_t* id, const SampleInput& in) {
    contract::sample_filtered(id, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        const SampleRow& row = rows[i];
        const float* const x = logits.row(row.row);
        if (!is_filtered(row)) {
            const Columns columns{x, first_id, valid, nullptr, 0};
            const bool greedy = row.inverse_temperature == 0.0;
            const Best best = greedy ? best_greedy(row, columns) : best_drawn(row, columns);
            id[i] = best.column < 0 ? -1 : first_id + best.column;
            continue;
        }
        best_.clear();
        for (int32_t c = 0; c < valid; ++c) {
            const float value = logit_of(row, x[c], first_id + c);
            if (value > kNothing) best_.emplace_back(value, first_id + c);
        }
        std::sort(best_.begin(), best_.end(), before);
        id[i] = draw_among(std::span(best_).first(count_kept(best_, row)), row);
    }
}

void CpuBackend::sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                                   const SampleInput& in) {
    contract::sample_candidates(values, raw, ids, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    const auto k = static_cast<size_t>(ids.cols);
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        const float* const x = logits.row(rows[i].row);
        best_.clear();  // a heap whose front is the worst of the best k
        for (int32_t c = 0; c < valid; ++c) {
            const std::pair<float, int32_t> one{logit_of(rows[i], x[c], first_id + c), c};
            if (!(one.first > kNothing)) continue;
            if (best_.size() == k) {
                if (!before(one, best_.front())) continue;
                std::pop_heap(best_.begin(), best_.end(), before);
                best_.pop_back();
            }
            best_.push_back(one);
            std::push_heap(best_.begin(), best_.end(), before);
        }
        std::sort_heap(best_.begin(), best_.end(), before);
        for (size_t j = 0; j < k; ++j) {
            const bool there = j < best_.size();
            values.row(i)[j] = there ? best_[j].first : kNothing;
            raw.row(i)[j] = there ? x[best_[j].second] : kNothing;
            ids.row(i)[j] = there ? first_id + best_[j].second : -1;
        }
    }
}

void CpuBackend::sample_sum(ExpSum* sums, const SampleInput& in) {
    contract::sample_sum(sums, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        const SampleRow& row = rows[i];
        const double inverse = row.inverse_temperature == 0.0 ? 1.0 : row.inverse_temperature;
        ExpSum sum;
        for (int32_t c = 0; c < valid; ++c) {
            sum.add(weight_of(logit_of(row, logits.row(row.row)[c], first_id + c), inverse));
        }
        sums[i] = sum;
    }
}

void CpuBackend::sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                           const SampleInput& in) {
    contract::sample_at(values, raw, ids, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        for (int64_t j = 0; j < ids.cols; ++j) {
            const int32_t id = ids.row(i)[j];
            const bool here = id >= first_id && id - first_id < valid;
            const float x = here ? logits.row(rows[i].row)[id - first_id]
                                 : std::numeric_limits<float>::quiet_NaN();
            raw.row(i)[j] = x;
            values.row(i)[j] = here ? logit_of(rows[i], x, id) : x;
        }
    }
}

}  // namespace quadrille::cpu
