// SPDX-License-Identifier: Apache-2.0
// index_pool and index_select against section 3.5 of the model's specification in double precision,
// over every kind of split: pools that straddle passes, rejected rows, ring wraps.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

constexpr int32_t kTokens = 90;

struct Indexer {
    IndexParams params;
    std::vector<float> key, gate, ape, query, weight;  // (kTokens, ...), ape (pool, d)

    Indexer(int32_t heads, int32_t d, int32_t pool, int32_t topk, uint64_t seed)
        : params{heads, d, pool, topk} {
        Random random(seed);
        key = random.normals(kTokens * d);
        gate = random.normals(kTokens * d);
        ape = random.normals(pool * d);
        query = random.normals(int64_t{kTokens} * heads * d);
        weight = random.normals(int64_t{kTokens} * heads);
    }
    int64_t d() const { return params.head_dim; }

    double pooled(int64_t p, int64_t c) const {
        double total = 0, sum = 0;
        for (int64_t j = 0; j < params.pool; ++j) {
            const size_t at = size((p * params.pool + j) * d() + c);
            const double e = std::exp(double(gate[at]) + double(ape[size(j * d() + c)]));
            total += e;
            sum += e * double(key[at]);
        }
        return sum / total;
    }
    // What token t attends to, by sorting every score. Empty: everything.
    std::vector<int32_t> expected(int64_t t) const {
        const int64_t pools = (t + 1) / params.pool;
        const int64_t wanted = params.topk / params.pool;
        if (pools <= wanted) return {};
        std::vector<double> score;
        for (int64_t p = 0; p < pools; ++p) {
            double sum = 0;
            for (int64_t h = 0; h < params.heads; ++h) {
                double match = 0;
                for (int64_t c = 0; c < d(); ++c) {
                    match += double(query[size((t * params.heads + h) * d() + c)]) * pooled(p, c);
                }
                sum += double(weight[size(t * params.heads + h)]) * std::max(match, 0.0);
            }
            score.push_back(sum);
        }
        std::vector<int64_t> order(size(pools));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return score[size(a)] > score[size(b)]; });
        // The data must not hinge on rounding.
        EXPECT_GT(score[size(order[size(wanted - 1)])] - score[size(order[size(wanted)])], 1e-6);
        order.resize(size(wanted));
        std::sort(order.begin(), order.end());
        std::vector<int32_t> positions;
        for (const int64_t p : order) {
            for (int64_t j = 0; j < params.pool; ++j) {
                positions.push_back(static_cast<int32_t>(p * params.pool + j));
            }
        }
        for (int64_t i = pools * params.pool; i <= t; ++i) {
            positions.push_back(static_cast<int32_t>(i));
        }
        return positions;
    }
};

class Caches {
  public:
    Caches(const Indexer& of, int64_t slots, int32_t ring_size)
        : pools_(garbage(slots, kTokens / of.params.pool * of.d())),
          ring_(garbage(slots, ring_size * 2 * of.d())),
          ring_size_(ring_size) {}
    IndexCache cache() { return {pools_.view(), ring_.view(), ring_size_}; }
    const float* pools(int64_t slot) const { return pools_.view().row(slot); }
    bool intact() const { return pools_.intact() && ring_.intact(); }

  private:
    static Guarded<float> garbage(int64_t slots, int64_t cols) {
        return {slots, cols, std::vector<float>(size(slots * cols), std::nanf("")), 2};
    }
    Guarded<float> pools_, ring_;
    int32_t ring_size_;
};

struct Selection {
    std::vector<int32_t> count;
    std::vector<int32_t> positions;  // (rows, topk + pool - 1)
};

// One pass; row i takes the values of token tokens[i].
Selection pass(const Indexer& of, Caches& caches, const RowLayout& layout,
               const std::vector<int64_t>& tokens, int64_t gap = 0) {
    const int64_t m = layout.m();
    const auto pick = [&](const std::vector<float>& values, int64_t cols) {
        return Guarded<float>(m, cols, gather_rows<float>(values, cols, tokens), gap);
    };
    Guarded<float> key = pick(of.key, of.d()), gate = pick(of.gate, of.d());
    Guarded<float> query = pick(of.query, of.params.heads * of.d());
    Guarded<float> weight = pick(of.weight, of.params.heads);
    Guarded<int32_t> selected(m, of.params.topk + of.params.pool - 1, gap), count(1, m);
    cpu::CpuBackend backend;
    backend.index_pool(caches.cache(), key.view(), gate.view(), of.ape.data(), of.params,
                       layout.rows());
    backend.index_select(selected.view(), count.data(), query.view(), weight.view(), caches.cache(),
                         of.params, layout.rows());
    EXPECT_TRUE(selected.written() && count.written() && caches.intact());
    return {count.values(), selected.values()};
}

std::vector<int64_t> tokens_from(int64_t first, int64_t count) {
    std::vector<int64_t> tokens(size(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

void expect_selection(const Indexer& of, const Selection& found, int64_t row, int64_t t) {
    const int64_t cols = of.params.topk + of.params.pool - 1;
    std::vector<int32_t> expected = of.expected(t);
    EXPECT_EQ(found.count[size(row)], expected.empty() ? -1 : static_cast<int32_t>(expected.size()))
        << "token " << t;
    expected.resize(size(cols), -1);
    EXPECT_TRUE(same({found.positions.data() + row * cols, size(cols)}, expected)) << "token " << t;
}

TEST(Indexer, PoolsAndSelectionFollowTheSpecification) {
    for (const auto& [heads, d, pool, topk] :
         {std::array{16, 64, 4, 32}, {16, 20, 4, 8}, {17, 16, 5, 15}, {16, 8, 1, 7}}) {
        const Indexer of(heads, d, pool, topk, 1);
        Caches caches(of, 2, pool + 3);
        RowLayout layout(true);
        layout.add(1, 0, kTokens);
        const Selection found = pass(of, caches, layout, tokens_from(0, kTokens), 3);
        std::vector<float> expected;
        for (int64_t p = 0; p < kTokens / pool; ++p) {
            for (int64_t c = 0; c < d; ++c) expected.push_back(float(of.pooled(p, c)));
        }
        EXPECT_TRUE(close({caches.pools(1), expected.size()}, expected, rounded()));
        for (int64_t t = 0; t < kTokens; ++t) expect_selection(of, found, t, t);
        EXPECT_TRUE(std::isnan(caches.pools(0)[0]));
    }
}

TEST(Indexer, SparseFromTheFirstLengthThatLeavesAPoolOut) {
    const Indexer of(4, 16, 4, 16, 2);
    Caches caches(of, 1, 8);
    RowLayout layout(true);
    layout.add(0, 0, 24);
    const Selection found = pass(of, caches, layout, tokens_from(0, 24));
    // topk + pool - 1 tokens are the last dense length, as in 2051 of topk 2048 and pool 4.
    for (size_t t = 0; t < 24; ++t) EXPECT_EQ(found.count[t] < 0, t + 1 <= 19) << t;
    EXPECT_EQ(found.count[19], 16);
    EXPECT_EQ(found.count[20], 17);
}

TEST(Indexer, TiesGoToTheLowestPool) {
    Indexer of(2, 8, 2, 6, 3);
    std::fill(of.key.begin(), of.key.end(), 1.0f);  // every pool the same
    Caches caches(of, 1, 4);
    RowLayout layout(true);
    layout.add(0, 0, 21);
    Selection found = pass(of, caches, layout, tokens_from(0, 21));
    const std::vector<int32_t> lowest = {0, 1, 2, 3, 4, 5, 20};
    EXPECT_TRUE(same({found.positions.data() + 20 * 7, 7}, lowest));
    // Negative weights and all-zero relu terms: zeros of either sign tie as well.
    std::fill(of.weight.begin(), of.weight.end(), -1.0f);
    for (size_t i = 0; i < of.key.size(); ++i) of.key[i] = i / 8 % 4 < 2 ? 0.0f : -0.0f;
    found = pass(of, caches, layout, tokens_from(0, 21));
    EXPECT_TRUE(same({found.positions.data() + 20 * 7, 7}, lowest));
}

TEST(Indexer, ANanScoreIsNeverPreferred) {
    Indexer of(2, 8, 2, 4, 4);
    for (size_t c = 0; c < 8; ++c) of.key[6 * 8 + c] = std::nanf("");  // pool 3
    Caches caches(of, 1, 4);
    RowLayout layout(true);
    layout.add(0, 0, 16);
    const Selection found = pass(of, caches, layout, tokens_from(0, 16));
    for (size_t i = 0; i < 5; ++i) EXPECT_NE(found.positions[15 * 5 + i], 6);
    EXPECT_EQ(found.count[15], 4);
}

TEST(Indexer, AnySplitGivesTheSameBits) {
    const Indexer of(4, 20, 4, 16, 5);
    Caches expected(of, 1, 11);
    RowLayout whole(true);
    whole.add(0, 0, kTokens);
    const Selection all = pass(of, expected, whole, tokens_from(0, kTokens));
    const int64_t cols = 16 + 3;
    for (uint64_t trial = 0; trial < 40; ++trial) {
        Random random(trial);
        // The ring's promise: pool - 1 + the longest decode block.
        Caches caches(of, 3, 11);
        std::vector<int32_t> position(3);
        while (*std::min_element(position.begin(), position.end()) < kTokens) {
            const bool commit = random.integer(0, 2) == 0;
            RowLayout layout(commit);
            std::vector<int64_t> tokens;
            std::vector<std::array<int32_t, 3>> taken;  // slot, first row, accepted
            for (int32_t s = 0; s < 3; ++s) {
                const int32_t left = kTokens - position[size(s)];
                if (left == 0 || random.integer(0, 3) == 0) continue;
                const auto most =
                    std::min(left, static_cast<int32_t>(random.integer(1, commit ? 30 : 8)));
                const auto accepted = commit ? most : static_cast<int32_t>(random.integer(1, most));
                const int32_t first = layout.add(s, position[size(s)], most);
                for (int32_t i = 0; i < most; ++i) {
                    tokens.push_back(i < accepted ? position[size(s)] + i
                                                  : random.integer(0, kTokens - 1));
                }
                taken.push_back({s, first, accepted});
            }
            const Selection found = pass(of, caches, layout, tokens, trial % 3);
            for (const auto& [s, first, accepted] : taken) {
                for (int32_t i = 0; i < accepted; ++i) {
                    const int64_t t = position[size(s)] + i;
                    ASSERT_EQ(found.count[size(first + i)], all.count[size(t)]) << t;
                    ASSERT_TRUE(same({found.positions.data() + (first + i) * cols, size(cols)},
                                     {all.positions.data() + t * cols, size(cols)}));
                }
                position[size(s)] += accepted;
            }
        }
        for (int64_t s = 0; s < 3; ++s) {
            const size_t length = size(kTokens / 4 * of.d());
            EXPECT_TRUE(same({caches.pools(s), length}, {expected.pools(0), length}));
        }
    }
}

TEST(Indexer, PaddingRowsSelectNothing) {
    const Indexer of(2, 8, 4, 8, 6);
    Caches caches(of, 1, 8);
    RowLayout layout;
    layout.add(-1, 40, 2);
    layout.add(0, 0, 3);
    const Selection found = pass(of, caches, layout, tokens_from(0, 5));
    EXPECT_EQ(found.count, (std::vector<int32_t>{0, 0, -1, -1, -1}));
    for (const int32_t position : found.positions) EXPECT_EQ(position, -1);
    EXPECT_TRUE(std::isnan(caches.pools(0)[0]));
}

TEST(Indexer, RefusesPositionsBeyondTheCache) {
    const Indexer of(2, 8, 4, 8, 6);
    Caches caches(of, 1, 8);
    RowLayout layout;
    layout.add(0, kTokens, 8);
    expect_error(ErrorKind::internal, {"fit their slot"},
                 [&] { pass(of, caches, layout, tokens_from(0, 8)); });
}

}  // namespace
}  // namespace quadrille
