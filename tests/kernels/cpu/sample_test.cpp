// SPDX-License-Identifier: Apache-2.0
// Draws from rows of logits: penalty, noise, candidates and sums against plain references, hostile
// logits, and the same bits however the columns are shared.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace quadrille::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kVocab = 1024;

struct Drawn {
    double score;
    int32_t id;
    float logit;

    friend bool operator==(const Drawn&, const Drawn&) = default;
};

class Rows {
  public:
    explicit Rows(std::vector<float> logits, int64_t cols = kVocab)
        : logits_(std::move(logits)), cols_(cols) {}

    View<const float> view() const { return {logits_.data(), std::ssize(logits_) / cols_, cols_}; }
    float& at(int64_t row, int64_t column) {
        return logits_[static_cast<size_t>(row * cols_ + column)];
    }

    Drawn sample(const SampleRow& row, std::vector<int32_t> excluded = {}) {
        return sample(row, 0, static_cast<int32_t>(cols_), cols_, std::move(excluded));
    }
    // Over the columns [first, first + valid) of a rank that holds `width`.
    Drawn sample(const SampleRow& row, int32_t first, int32_t valid, int64_t width,
                 std::vector<int32_t> excluded = {}) {
        Guarded<double> score(1, 1);
        Guarded<int32_t> id(1, 1);
        Guarded<float> logit(1, 1);
        const View<const int32_t> none{excluded.data(), 1, std::ssize(excluded)};
        backend_.sample(score.data(), id.data(), logit.data(),
                        {view().slice_cols(first, width), &row, 1, first, valid}, none);
        EXPECT_TRUE(id.written() && logit.written() && score.intact());
        return {score.values()[0], id.values()[0], logit.values()[0]};
    }
    ExpSum sum(const SampleRow& row, int32_t first, int32_t valid) {
        ExpSum result;
        backend_.sample_sum(&result, {view().slice_cols(first, valid), &row, 1, first, valid});
        return result;
    }
    cpu::CpuBackend& backend() { return backend_; }

  private:
    cpu::CpuBackend backend_;
    std::vector<float> logits_;
    int64_t cols_;
};

// Ids 0, 3, 6, … as seen, 5 and 6 as drafts.
struct History {
    std::vector<uint32_t> seen = std::vector<uint32_t>(kVocab / 32);
    std::vector<int32_t> drafts = {5, 6, 5};

    History() {
        cpu::CpuBackend backend;
        std::vector<int32_t> ids, slots;
        for (int32_t id = 0; id < kVocab; id += 3) {
            ids.push_back(id);
            slots.push_back(0);
        }
        backend.mark_seen({seen.data(), 1, std::ssize(seen)}, slots.data(), ids.data(),
                          static_cast<int32_t>(ids.size()));
    }
    void give(SampleRow& row, float penalty) const {
        row.seen = seen.data();
        row.drafts = drafts.data();
        row.draft_count = 3;
        row.penalty = penalty;
    }
    static float logit(float value, int32_t id, float penalty) {
        if (id % 3 != 0 && id != 5) return value;
        return value > 0 ? value / penalty : value * penalty;
    }
};

TEST(Sample, GreedyIsArgmaxOfThePenalizedLogits) {
    Random random(1);
    const History history;
    for (int trial = 0; trial < 50; ++trial) {
        const std::vector<float> logits = random.normals(kVocab, 3.0f);
        Rows rows(logits);
        SampleRow row;
        float value = 0;
        int32_t id = 0;
        rows.backend().argmax(&value, &id, rows.view(), 0, kVocab);
        EXPECT_EQ(rows.sample(row), (Drawn{value, id, value}));
        const float penalty = trial % 2 == 0 ? 1.7f : 0.6f;
        history.give(row, penalty);
        std::vector<float> penalized = logits;
        for (int32_t c = 0; c < kVocab; ++c)
            penalized[static_cast<size_t>(c)] =
                History::logit(logits[static_cast<size_t>(c)], c, penalty);
        const auto best = std::max_element(penalized.begin(), penalized.end());
        const auto column = best - penalized.begin();
        EXPECT_EQ(rows.sample(row), (Drawn{*best, static_cast<int32_t>(column),
                                           logits[static_cast<size_t>(column)]}));
    }
}

TEST(Sample, DrawIsTheArgmaxOfLogitsAndNoise) {
    Random random(2);
    const History history;
    for (int trial = 0; trial < 200; ++trial) {
        const std::vector<float> logits = random.normals(kVocab, 3.0f);
        Rows rows(logits);
        SampleRow row{
            .seed = random.bits(), .position = trial, .inverse_temperature = 0.25 + trial % 4};
        history.give(row, trial % 3 == 0 ? 1.0f : 1.3f);
        std::vector<double> scores;
        for (int32_t c = 0; c < kVocab; ++c) {
            const float logit = History::logit(logits[static_cast<size_t>(c)], c, row.penalty);
            scores.push_back(double{logit} * row.inverse_temperature +
                             gumbel(row.seed, row.position, Stream::token, c));
        }
        const auto order = [&](size_t n) {  // the n-th best
            std::vector<int32_t> ids(kVocab);
            for (int32_t c = 0; c < kVocab; ++c) ids[static_cast<size_t>(c)] = c;
            std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
                return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
            });
            return ids[n];
        };
        const int32_t first = order(0);
        EXPECT_EQ(rows.sample(row), (Drawn{scores[static_cast<size_t>(first)], first,
                                           logits[static_cast<size_t>(first)]}));
        EXPECT_EQ(rows.sample(row, {-1, first, order(1)}).id, order(2));
        row.stream = Stream::residual;
        row.position += 1000;
        EXPECT_NE(rows.sample(row).score, scores[static_cast<size_t>(first)]);
    }
}

TEST(Sample, SharedColumnsGiveTheSameBest) {
    Random random(3);
    const History history;
    const std::vector<int32_t> cuts = {0, 384, 768, 896, 1024};
    for (int trial = 0; trial < 50; ++trial) {
        Rows rows(random.normals(kVocab, 2.0f));
        SampleRow row{.seed = random.bits(), .position = trial, .inverse_temperature = 1.1};
        history.give(row, 1.2f);
        const Drawn whole = rows.sample(row);
        Drawn best{-kInfinity, -1, 0};
        ExpSum sum;
        for (size_t part = 0; part + 1 < cuts.size(); ++part) {
            const int32_t width = cuts[part + 1] - cuts[part];
            const Drawn here = rows.sample(row, cuts[part], width, width);
            if (here.score > best.score) best = here;
            sum.add(rows.sum(row, cuts[part], width));
        }
        EXPECT_EQ(best, whole);
        EXPECT_EQ(sum, rows.sum(row, 0, kVocab));
    }
}

TEST(Sample, ColumnsBehindTheKnownOnesAreNeverDrawn) {
    Rows rows(std::vector<float>(kVocab, 0.0f));
    for (int32_t c = 700; c < kVocab; ++c) rows.at(0, c) = 1e30f;
    SampleRow row{.inverse_temperature = 1.0};
    for (row.position = 0; row.position < 200; ++row.position) {
        EXPECT_LT(rows.sample(row, 0, 700, kVocab).id, 700);
    }
    EXPECT_EQ(rows.sample(row, 768, 0, 128), (Drawn{-kInfinity, -1, -kInfinity}));
}

TEST(Sample, HostileLogits) {
    Rows rows(std::vector<float>(kVocab, NAN));
    SampleRow row{.inverse_temperature = 1.0};
    EXPECT_EQ(rows.sample(row).id, -1);
    EXPECT_TRUE(rows.sum(row, 0, kVocab).empty());
    rows.at(0, 9) = -kInfinity;
    EXPECT_EQ(rows.sample(row).id, -1);
    row.inverse_temperature = 0.0;
    EXPECT_EQ(rows.sample(row).id, 9);  // as argmax
    rows.at(0, 700) = -3.0f;
    for (const double inverse : {0.0, 1e-300, 1.0, 1e15, 1e200}) {
        row.inverse_temperature = inverse;
        EXPECT_EQ(rows.sample(row).id, 700) << inverse;
    }
    rows.at(0, 44) = kInfinity;
    rows.at(0, 45) = kInfinity;
    for (const double inverse : {0.0, 1e-3, 1.0, 1e200}) {
        row.inverse_temperature = inverse;
        EXPECT_EQ(rows.sample(row).id, 44) << inverse;
    }
}

TEST(SampleCandidates, AreTheStableSortOfThePenalizedLogits) {
    Random random(4);
    const History history;
    for (const int64_t k : {1, 16, 256, 2000}) {
        std::vector<float> logits(kVocab);
        for (float& value : logits) value = static_cast<float>(random.integer(-20, 20));
        logits[100] = NAN;
        logits[200] = -kInfinity;
        Rows rows(logits);
        SampleRow row;
        history.give(row, 2.0f);
        std::vector<int32_t> order;
        std::vector<float> penalized;
        for (int32_t c = 0; c < kVocab; ++c) {
            penalized.push_back(History::logit(logits[static_cast<size_t>(c)], c, 2.0f));
            if (penalized.back() > -kInfinity) order.push_back(c);
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return penalized[static_cast<size_t>(a)] > penalized[static_cast<size_t>(b)];
        });
        Guarded<float> values(1, k, 1), raw(1, k, 2);
        Guarded<int32_t> ids(1, k, 3);
        rows.backend().sample_candidates(values.view(), raw.view(), ids.view(),
                                         {rows.view(), &row, 1, 0, kVocab});
        EXPECT_TRUE(values.written() && raw.written() && ids.written());
        for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
            const bool there = i < order.size();
            ASSERT_EQ(ids.values()[i], there ? order[i] : -1);
            ASSERT_EQ(values.values()[i],
                      there ? penalized[static_cast<size_t>(order[i])] : -kInfinity);
            ASSERT_EQ(raw.values()[i], there ? logits[static_cast<size_t>(order[i])] : -kInfinity);
        }
    }
}

TEST(SampleAt, GivesWhatThisRankHolds) {
    Random random(5);
    const History history;
    Rows rows(random.normals(2 * kVocab));
    SampleRow row{.row = 1};
    history.give(row, 1.5f);
    const std::vector<int32_t> wanted = {256, 255, 5, 300, 383, 384, -1, 259};
    Guarded<float> values(1, 8), raw(1, 8);
    rows.backend().sample_at(values.view(), raw.view(), {wanted.data(), 1, 8},
                             {rows.view().slice_cols(256, 128), &row, 1, 256, 120});
    for (size_t i = 0; i < wanted.size(); ++i) {
        const int32_t id = wanted[i];
        if (id < 256 || id >= 376) {
            EXPECT_TRUE(std::isnan(values.values()[i]) && std::isnan(raw.values()[i])) << id;
        } else {
            EXPECT_EQ(raw.values()[i], rows.at(1, id));
            EXPECT_EQ(values.values()[i], History::logit(rows.at(1, id), id, 1.5f));
        }
    }
}

TEST(Sample, RowsAreIndependent) {
    cpu::CpuBackend backend;
    Random random(6);
    constexpr int64_t kPool = 17;
    const std::vector<float> pool = random.normals(kPool * 333);
    expect_one_arithmetic_per_row(kPool, 4, [&](std::span<const int64_t> rows, int64_t gap) {
        const int64_t m = std::ssize(rows);
        const auto count = static_cast<int32_t>(m);
        const Guarded<float> in(m, 333, gather_rows<float>(pool, 333, rows), gap);
        std::vector<SampleRow> wanted;
        for (const int64_t r : rows) {
            wanted.push_back({.seed = static_cast<uint64_t>(r),
                              .position = 40 + r,
                              .inverse_temperature = static_cast<double>(r % 3),
                              .row = static_cast<int32_t>(wanted.size())});
        }
        Guarded<double> score(m, 1);
        Guarded<int32_t> id(m, 1);
        Guarded<float> logit(m, 1);
        std::vector<ExpSum> sums(static_cast<size_t>(m));
        const SampleInput drawn{in.view(), wanted.data(), count, 0, 300};
        backend.sample(score.data(), id.data(), logit.data(), drawn, {});
        backend.sample_sum(sums.data(), drawn);
        std::vector<float> out;
        for (int64_t r = 0; r < m; ++r) {
            out.push_back(static_cast<float>(score.data()[r]));
            out.push_back(static_cast<float>(id.data()[r]));
            out.push_back(logit.data()[r]);
            out.push_back(static_cast<float>(sums[static_cast<size_t>(r)].limb[0]));
        }
        return out;
    });
}

TEST(MarkSeen, RefusesWhatIsOutside) {
    cpu::CpuBackend backend;
    std::vector<uint32_t> seen(2 * 4);
    const auto mark = [&](int32_t slot, int32_t token) {
        backend.mark_seen({seen.data(), 2, 4}, &slot, &token, 1);
    };
    mark(1, 127);
    EXPECT_EQ(seen, (std::vector<uint32_t>{0, 0, 0, 0, 0, 0, 0, 1u << 31}));
    EXPECT_THROW(mark(1, 128), Error);
    EXPECT_THROW(mark(2, 0), Error);
    EXPECT_THROW(mark(0, -1), Error);
}

}  // namespace
}  // namespace quadrille::test
