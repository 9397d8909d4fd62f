// SPDX-License-Identifier: Apache-2.0
// The path through a drafter's candidates against section 2 of its specification in double
// precision.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

struct Walk {
    int64_t vocabulary, rank, k, top, sequences;
    std::vector<BF16> before, after;
    std::vector<float> values, projected;
    std::vector<int32_t> ids, anchor;

    explicit Walk(uint64_t seed, int64_t count = 3)
        : vocabulary(50), rank(24), k(5), top(6), sequences(count) {
        Random random(seed);
        before = to_bf16s(random.normals(vocabulary * rank));
        after = to_bf16s(random.normals(vocabulary * rank));
        values = random.normals(sequences * k * top);
        projected = random.normals(sequences * k * rank, 0.3f);
        for (int64_t slot = 0; slot < sequences * k; ++slot) {
            const std::vector<int64_t> tokens = random.permutation(vocabulary);
            ids.insert(ids.end(), tokens.begin(), tokens.begin() + top);
        }
        for (int64_t i = 0; i < sequences; ++i) {
            anchor.push_back(static_cast<int32_t>(random.integer(0, vocabulary - 1)));
        }
    }
    Matrix codebook(const std::vector<BF16>& rows) const {
        Matrix m;
        m.n = vocabulary;
        m.k = rank;
        m.weights = rows.data();
        m.dtype = Dtype::bf16;
        return m;
    }
    std::vector<int32_t> expected() const {
        std::vector<int32_t> path;
        for (int64_t i = 0; i < sequences; ++i) {
            int32_t a = anchor[size(i)];
            for (int64_t t = i * k; t < (i + 1) * k; ++t) {
                double best = -INFINITY;
                int32_t next = -1;
                for (int64_t b = 0; b < top; ++b) {
                    const int32_t id = ids[size(t * top + b)];
                    double score = double(values[size(t * top + b)]);
                    for (int64_t r = 0; r < rank; ++r) {
                        score += double(to_float(before[size(a * rank + r)])) *
                                 double(projected[size(t * rank + r)]) *
                                 double(to_float(after[size(id * rank + r)]));
                    }
                    if (score > best) {
                        best = score;
                        next = id;
                    }
                }
                path.push_back(a = next);
            }
        }
        return path;
    }
    std::vector<int32_t> run(int64_t used_rank, const SampleRow* draws = nullptr,
                             std::vector<float>* scores = nullptr) {
        Guarded<int32_t> path(sequences, k, 2);
        Guarded<float> walked(scores == nullptr ? 0 : sequences * k, top);
        Guarded<int32_t> candidates(sequences * k, top, ids, 1);
        Guarded<float> unary(sequences * k, top, values, 3);
        Guarded<float> hidden(sequences * k, rank, projected, 1);
        cpu::CpuBackend backend;
        const Matrix none;
        backend.walk_path(path.view(), walked.view(),
                          {unary.view(), candidates.view(), hidden.view().slice_cols(0, used_rank),
                           used_rank > 0 ? codebook(before) : none,
                           used_rank > 0 ? codebook(after) : none, anchor.data(), draws});
        EXPECT_TRUE(path.written() && walked.written());
        if (scores != nullptr) *scores = walked.values();
        return path.values();
    }
};

TEST(WalkPath, FollowsTheBestPairs) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Walk walk(seed);
        EXPECT_TRUE(same(walk.run(walk.rank), walk.expected())) << seed;
    }
}

TEST(WalkPath, WithoutASelectorTakesTheBestCandidate) {
    Walk walk(1);
    const std::vector<int32_t> path = walk.run(0);
    for (size_t t = 0; t < path.size(); ++t) {
        const auto first = walk.values.begin() + static_cast<int64_t>(t) * walk.top;
        const auto best = std::max_element(first, first + walk.top) - walk.values.begin();
        EXPECT_EQ(path[t], walk.ids[size(best)]);
    }
    EXPECT_FALSE(same(path, walk.expected()));  // the selector matters
}

TEST(WalkPath, TiesGoToTheFirstCandidateAndMissingOnesAreSkipped) {
    Walk walk(2, 1);
    std::fill(walk.values.begin(), walk.values.end(), 1.0f);
    std::fill(walk.projected.begin(), walk.projected.end(), 0.0f);
    for (int64_t t = 0; t < walk.k; ++t) {
        walk.ids[size(t * walk.top)] = -1;
        walk.values[size(t * walk.top)] = -INFINITY;
        walk.ids[size(t * walk.top + 5)] = 3;
    }
    const std::vector<int32_t> path = walk.run(walk.rank);
    for (int64_t t = 0; t < walk.k; ++t) EXPECT_EQ(path[size(t)], walk.ids[size(t * walk.top + 1)]);
}

TEST(WalkPath, DrawsWithTheNoiseOfEachPosition) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Walk walk(seed);
        std::vector<SampleRow> draws(size(walk.sequences));
        for (size_t i = 0; i < draws.size(); ++i) {
            draws[i].seed = seed * 100 + i;
            draws[i].position = 10 * static_cast<int64_t>(i);
            draws[i].inverse_temperature = i == 0 ? 0.0 : 0.5;
        }
        std::vector<float> scores;
        const std::vector<int32_t> path = walk.run(walk.rank, draws.data(), &scores);
        const std::vector<int32_t> greedy = walk.run(walk.rank);
        EXPECT_TRUE(std::equal(greedy.begin(), greedy.begin() + walk.k, path.begin()));
        for (size_t slot = 0; slot < path.size(); ++slot) {
            const SampleRow& draw = draws[slot / size(walk.k)];
            const auto position = draw.position + static_cast<int64_t>(slot % size(walk.k));
            double best = -INFINITY;
            int32_t expected = -1;
            for (size_t b = slot * size(walk.top); b < (slot + 1) * size(walk.top); ++b) {
                const double noise = gumbel(draw.seed, position, Stream::token, walk.ids[b]);
                const double score =
                    draw.inverse_temperature == 0.0 ? double{scores[b]} : scores[b] * 0.5 + noise;
                if (score > best) expected = walk.ids[b];
                best = std::max(best, score);
            }
            EXPECT_EQ(path[slot], expected) << seed << " slot " << slot;
        }
    }
}

TEST(WalkPath, PenalizesTheHistoryAndItsOwnPath) {
    Walk walk(5, 1);
    std::vector<uint32_t> seen(2);
    const int32_t old = walk.ids[0];
    seen[size(old / 32)] |= 1u << (old % 32);
    // The same candidates in every slot: a path under a harsh penalty never repeats itself.
    for (size_t b = size(walk.top); b < walk.ids.size(); ++b)
        walk.ids[b] = walk.ids[b % size(walk.top)];
    for (float& value : walk.values) value = std::abs(value) + 1.0f;
    SampleRow draw;
    draw.seen = seen.data();
    draw.penalty = 1e6f;
    const std::vector<int32_t> path = walk.run(0, &draw);
    for (size_t t = 0; t < path.size(); ++t) {
        EXPECT_NE(path[t], old);
        EXPECT_EQ(std::count(path.begin(), path.begin() + static_cast<int64_t>(t), path[t]), 0);
    }
    EXPECT_EQ(std::ssize(path), walk.top - 1);
}

TEST(WalkPath, RefusesTokensOutsideTheCodebooks) {
    Walk walk(3);
    walk.anchor[1] = 50;
    expect_error(ErrorKind::internal, {"codebook row"}, [&] { walk.run(walk.rank); });
    Walk other(4);
    other.ids[7] = 50;
    expect_error(ErrorKind::internal, {"codebook row"}, [&] { other.run(other.rank); });
}

}  // namespace
}  // namespace quadrille
