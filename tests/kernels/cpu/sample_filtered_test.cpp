// SPDX-License-Identifier: Apache-2.0
// Draws among the ids that filters keep, against a sort of the row in long double, and rows that
// end before their last id.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace quadrille::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kVocab = 1024;

class Row {
  public:
    explicit Row(std::vector<float> logits) : logits_(std::move(logits)) {}

    int32_t filtered(const SampleRow& row) {
        Guarded<int32_t> id(1, 1);
        backend_.sample_filtered(id.data(), in(row));
        EXPECT_TRUE(id.written());
        return id.values()[0];
    }
    int32_t drawn(const SampleRow& row) {
        double score = 0;
        int32_t id = -2;
        float logit = 0;
        backend_.sample(&score, &id, &logit, in(row), {nullptr, 1, 0});
        return id;
    }
    ExpSum sum(const SampleRow& row) {
        ExpSum result;
        backend_.sample_sum(&result, in(row));
        return result;
    }

  private:
    SampleInput in(const SampleRow& row) const {
        return {{logits_.data(), 1, kVocab}, &row, 1, 0, kVocab};
    }

    cpu::CpuBackend backend_;
    std::vector<float> logits_;
};

// The filters by their definition, in long double.
size_t kept_of(std::span<const float> sorted, const SampleRow& row) {
    std::vector<long double> p;
    for (const float value : sorted) {
        p.push_back(std::exp((static_cast<long double>(value) - sorted[0]) *
                             static_cast<long double>(row.inverse_temperature)));
    }
    size_t kept = sorted.size();
    if (row.top_k > 0) kept = std::min(kept, static_cast<size_t>(row.top_k));
    long double sum = 0;
    for (size_t i = 0; i < kept; ++i) sum += p[i];
    long double reached = 0;
    size_t by_top_p = 0;
    while (by_top_p < kept && reached < row.top_p * sum) reached += p[by_top_p++];
    kept = std::min(kept, std::max<size_t>(by_top_p, 1));
    while (kept > 1 && p[kept - 1] < row.min_p) --kept;
    return kept;
}

int32_t filtered_reference(std::span<const float> logits, const SampleRow& row) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return value(a) > value(b); });
    std::vector<float> sorted;
    for (const int32_t id : order) sorted.push_back(value(id));
    int32_t best = -1;
    double best_score = 0;
    for (size_t i = 0; i < kept_of(sorted, row); ++i) {
        const double score = double{sorted[i]} * row.inverse_temperature +
                             gumbel(row.seed, row.position, row.stream, order[i]);
        if (best >= 0 && score <= best_score) continue;
        best = order[i];
        best_score = score;
    }
    return best;
}

TEST(SampleFiltered, IsTheSortedRowCutAndDrawnFrom) {
    Random random(8);
    for (int trial = 0; trial < 300; ++trial) {
        // Flat, moderate and steep rows; every fourth with many ties.
        const float spread = trial % 3 == 0 ? 0.05f : trial % 3 == 1 ? 1.0f : 8.0f;
        std::vector<float> logits = random.normals(kVocab, spread);
        if (trial % 4 == 0) {
            for (float& value : logits) value = std::round(value * 2) / 2;
        }
        Row rows(logits);
        SampleRow row{
            .seed = random.bits(), .position = trial, .inverse_temperature = 0.5 + trial % 3};
        if (trial % 2 == 0) row.top_p = random.uniform(0.02f, 0.999f);
        if (trial % 5 < 2)
            row.top_k = static_cast<int32_t>(random.integer(1, trial % 5 == 0 ? 30 : 1200));
        if (trial % 7 < 3) row.min_p = random.uniform(0.0f, 0.5f);
        EXPECT_EQ(rows.filtered(row), filtered_reference(logits, row)) << trial;
    }
}

TEST(SampleFiltered, Edges) {
    Random random(9);
    std::vector<float> logits = random.normals(kVocab, 1e-3f);
    logits[77] = 5.0f;
    Row rows(logits);
    for (int64_t position = 0; position < 50; ++position) {
        SampleRow row{.position = position, .inverse_temperature = 1.0};
        const int32_t free = rows.filtered(row);
        EXPECT_EQ(free, rows.drawn(row));
        row.top_k = kVocab;
        EXPECT_EQ(rows.filtered(row), free);
        row.top_k = 1;
        EXPECT_EQ(rows.filtered(row), 77);
        row.top_k = 0;
        row.top_p = 1e-9;
        EXPECT_EQ(rows.filtered(row), 77);
        row.top_p = 1 - 1e-12;
        EXPECT_EQ(rows.filtered(row), free);
        row.top_p = 1;
        row.min_p = 1;
        EXPECT_EQ(rows.filtered(row), 77);
    }
    for (float& value : std::span(logits)) value = -kInfinity;
    Row nothing(logits);
    SampleRow row{.inverse_temperature = 1.0, .top_p = 0.5};
    EXPECT_EQ(nothing.filtered(row), -1);
}

// What stands before a place: the draw and the sum of those alone.
TEST(Sample, ARowEndsWhereItIsTold) {
    Random random(10);
    std::vector<float> logits(kVocab);
    for (float& value : logits) value = static_cast<float>(random.integer(-8, 8));
    Row rows(logits);
    SampleRow row{.inverse_temperature = 1.0};
    for (int32_t end = 0; end < kVocab; end += 37) {
        row.position = end;
        row.end = logits[static_cast<size_t>(end)];
        row.end_id = end;
        std::vector<float> before = logits;
        for (int32_t c = 0; c < kVocab; ++c) {
            float& value = before[static_cast<size_t>(c)];
            if (!(value > row.end || (value == row.end && c < end))) value = NAN;
        }
        SampleRow whole = row;
        whole.end = -kInfinity;
        whole.end_id = INT32_MAX;
        Row rest(before);
        EXPECT_EQ(rows.drawn(row), rest.drawn(whole)) << end;
        EXPECT_EQ(rows.sum(row), rest.sum(whole)) << end;
    }
}

}  // namespace
}  // namespace quadrille::test
