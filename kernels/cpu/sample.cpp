// SPDX-License-Identifier: Apache-2.0
// Draws from rows of logits: penalty, temperature and noise of one column at a time, so that what a
// row gives depends neither on its company nor on how the columns are shared.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"
#include "kernels/filter.h"
#include "kernels/sample_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

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

// The best column of a row without filters.
Best best_of(const SampleRow& row, const Columns& columns) {
    return row.inverse_temperature == 0.0 ? best_greedy(row, columns) : best_drawn(row, columns);
}

// By its definition: all ids of the row, sorted, cut and drawn from.
int32_t draw_filtered(const SampleRow& row, std::vector<Candidate>& all) {
    if (all.empty()) return -1;
    std::sort(all.begin(), all.end(), before);
    const Filter filter = filter_of(row);
    ExpSum total;
    for (const Candidate& one : all) total.add(weight_of(one.value, filter.inverse_temperature));
    const auto kept = std::span(all).first(*count_kept(all, true, total, filter));
    const Noise noise{row.seed, row.position, row.stream};
    return kept[draw_among(kept, filter.inverse_temperature, noise)->index].id;
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
        const Best best = best_of(rows[i], columns);
        score[i] = best.score;
        id[i] = best.column < 0 ? -1 : first_id + best.column;
        logit[i] = best.column < 0 ? kNothing : columns.logits[best.column];
    }
}

void CpuBackend::sample_filtered(int32_t* id, const SampleInput& in) {
    contract::sample_filtered(id, in);
    const auto& [logits, rows, count, first_id, valid] = in;
    for (int32_t i = 0; i < count; ++i) {
        check_row(logits, rows[i]);
        const float* const x = logits.row(rows[i].row);
        if (!is_filtered(rows[i])) {
            const Best best = best_of(rows[i], {x, first_id, valid, nullptr, 0});
            id[i] = best.column < 0 ? -1 : first_id + best.column;
            continue;
        }
        best_.clear();
        for (int32_t c = 0; c < valid; ++c) {
            const float value = logit_of(rows[i], x[c], first_id + c);
            if (value > kNothing) best_.push_back({value, x[c], first_id + c});
        }
        id[i] = draw_filtered(rows[i], best_);
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
            const Candidate one{logit_of(rows[i], x[c], first_id + c), x[c], first_id + c};
            if (!(one.value > kNothing)) continue;
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
            const Candidate one = j < best_.size() ? best_[j] : Candidate{kNothing, kNothing, -1};
            values.row(i)[j] = one.value;
            raw.row(i)[j] = one.raw;
            ids.row(i)[j] = one.id;
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
