// SPDX-License-Identifier: Apache-2.0
// top-k, top-p and min-p against a plain reference over the whole vocabulary, from any number of
// known candidates.
#include "kernels/filter.h"

#include "kernels/noise.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quadrille::test {
namespace {

std::vector<Candidate> sorted_candidates(std::span<const float> logits) {
    std::vector<Candidate> all;
    for (size_t i = 0; i < logits.size(); ++i) {
        all.push_back({logits[i], logits[i], static_cast<int32_t>(i)});
    }
    std::sort(all.begin(), all.end(), before);
    return all;
}

ExpSum total_of(std::span<const Candidate> all, double inverse) {
    ExpSum sum;
    for (const Candidate& one : all) sum.add(exp2_term(one.value * inverse * kLog2E));
    return sum;
}

// The definition, in long double, over the whole sorted vocabulary.
size_t reference(std::span<const Candidate> all, const Filter& filter) {
    std::vector<long double> p;
    for (const Candidate& one : all) {
        p.push_back(std::exp((static_cast<long double>(one.value) - all[0].value) *
                             filter.inverse_temperature));
    }
    size_t kept = all.size();
    if (filter.top_k > 0) kept = std::min(kept, static_cast<size_t>(filter.top_k));
    const long double sum =
        std::accumulate(p.begin(), p.begin() + static_cast<int64_t>(kept), 0.0L);
    size_t by_top_p = filter.top_p < 1.0 ? 0 : kept;
    long double reached = 0;
    while (by_top_p < kept && (by_top_p == 0 || reached < filter.top_p * sum))
        reached += p[by_top_p++];
    size_t by_min_p = 1;
    while (by_min_p < all.size() && p[by_min_p] >= filter.min_p) ++by_min_p;
    return std::min({kept, by_top_p, by_min_p});
}

TEST(Filter, IsTheReferenceFromAnyKnownPrefix) {
    Random random(1);
    int64_t beyond = 0;
    for (int trial = 0; trial < 300; ++trial) {
        const std::vector<Candidate> all =
            sorted_candidates(random.normals(700, random.uniform(0.01f, 6.0f)));
        Filter filter{.inverse_temperature = random.uniform(0.2f, 3.0f)};
        if (trial % 2 == 0) filter.top_p = random.uniform(0.001f, 0.9999f);
        if (trial % 3 == 0) filter.top_k = random.integer(1, 900);
        if (trial % 5 == 0) filter.min_p = random.uniform(0.0f, 1.0f);
        const ExpSum total = total_of(all, filter.inverse_temperature);
        const size_t expected = reference(all, filter);
        EXPECT_EQ(count_kept(all, true, total, filter), expected) << trial;
        for (const size_t known : {size_t{1}, size_t{2}, size_t{30}, size_t{256}, size_t{699}}) {
            const auto found = count_kept(std::span(all).first(known), false, total, filter);
            if (found) {
                EXPECT_EQ(*found, expected) << trial << " known " << known;
            } else {
                ++beyond;
                const bool unknown_sum =
                    filter.top_p < 1.0 && filter.top_k > static_cast<int64_t>(known);
                // The cut of min-p shows only from the id behind.
                const bool last = filter.min_p > 0.0 && expected == known;
                EXPECT_TRUE(expected > known || unknown_sum || last) << trial << " known " << known;
            }
        }
    }
    EXPECT_GT(beyond, 100);  // both answers were tested
}

TEST(Filter, EdgesKeepWhatTheyName) {
    const std::vector<Candidate> all = sorted_candidates(std::vector<float>{1, 3, 3, 2, 3});
    const auto kept = [&](const Filter& filter) {
        return *count_kept(all, true, total_of(all, filter.inverse_temperature), filter);
    };
    EXPECT_EQ(kept({.top_p = 1e-300}), 1u);
    EXPECT_EQ(kept({.min_p = 1.0}), 3u);  // as likely as the best
    EXPECT_EQ(kept({.top_k = 1}), 1u);
    EXPECT_EQ(kept({.top_k = 5}), 5u);
    EXPECT_EQ(kept({.top_k = 1 << 30}), 5u);
    EXPECT_EQ(kept({.top_p = 1.0 - 0x1p-53}), 5u);
    EXPECT_EQ(all[0].id, 1);  // ties to the lowest id
    EXPECT_EQ(all[1].id, 2);
    // Two equal halves: exactly one half is enough.
    const std::vector<Candidate> pair = sorted_candidates(std::vector<float>{7, 7});
    EXPECT_EQ(count_kept(pair, true, total_of(pair, 1.0), {.top_p = 0.5}), 1u);
    EXPECT_EQ(count_kept(pair, true, total_of(pair, 1.0), {.top_p = 0.5000001}), 2u);
}

TEST(Filter, DrawsAmongThoseKept) {
    Random random(2);
    const std::vector<Candidate> all = sorted_candidates(random.normals(50));
    for (int64_t position = 0; position < 200; ++position) {
        const auto best = draw_among(std::span(all).first(10), 0.7, {9, position, Stream::token},
                                     std::vector<int32_t>{all[3].id});
        ASSERT_TRUE(best);
        EXPECT_LT(best->index, 10u);
        EXPECT_NE(best->index, 3u);
        for (size_t i = 0; i < 10; ++i) {
            if (i == 3) continue;
            EXPECT_GE(best->score,
                      all[i].value * 0.7 + gumbel(9, position, Stream::token, all[i].id));
        }
    }
    EXPECT_FALSE(draw_among(std::span(all).first(1), 1.0, {}, std::vector<int32_t>{all[0].id}));
}

}  // namespace
}  // namespace quadrille::test
