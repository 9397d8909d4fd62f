// SPDX-License-Identifier: Apache-2.0
// The indexer on a GPU against the CPU at the sizes of the model: what is chosen, in passes of few
// and many rows, with ties, NaN and shapes that nothing fits; the ring however tokens are cut.
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quadrille::test {
namespace {

struct Sequence {
    int32_t slot;
    int32_t position;
    int32_t rows;
};

// Pools of some slots, and rows that rank them.
struct Ranking {
    IndexParams params;
    int64_t slots;
    int64_t capacity;  // pools of a slot
    std::vector<float> pools;

    std::vector<float> query(int64_t rows, Random& random) const {
        return random.normals(rows * params.heads * params.head_dim);
    }
    // Row i takes query and weight i. Chosen positions, then counts.
    std::vector<int32_t> choose(Backend& backend, const std::vector<Sequence>& sequences,
                                const std::vector<float>& query, const std::vector<float>& weight,
                                int64_t gap) const {
        RowLayout layout;
        for (const Sequence& s : sequences) layout.add(s.slot, s.position, s.rows);
        Uploads uploads(backend);
        const int64_t m = layout.m();
        const int64_t d = params.head_dim;
        const OnDevice<float> all(backend, slots, capacity * d, pools, gap);
        const OnDevice<float> ring(backend, slots, 16 * 2 * d);
        const OnDevice<float> q(backend, m, params.heads * d, query, gap);
        const OnDevice<float> w(backend, m, params.heads, weight, gap);
        OnDevice<int32_t> selected(backend, m, params.topk + params.pool - 1, gap);
        OnDevice<int32_t> count(backend, 1, m);
        backend.index_select(selected.view(), count.data(), q.view(), w.view(),
                             {all.view(), ring.view(), 16}, params, uploads.rows(layout.rows()));
        std::vector<int32_t> result = selected.result();
        for (const int32_t n : count.result()) result.push_back(n);
        return result;
    }
};

class CudaIndexer : public testing::Test {
  protected:
    Ranking ranking(int32_t heads, int32_t d, int32_t pool, int32_t topk, int64_t slots,
                    int64_t capacity) {
        return {{.heads = heads, .head_dim = d, .pool = pool, .topk = topk},
                slots,
                capacity,
                random_.normals(slots * capacity * d)};
    }
    void expect_same(const Ranking& of, const std::vector<Sequence>& sequences, int64_t gap = 0) {
        int64_t m = 0;
        for (const Sequence& s : sequences) m += s.rows;
        expect_same(of, sequences, random_.normals(m * of.params.heads), gap);
    }
    void expect_same(const Ranking& of, const std::vector<Sequence>& sequences,
                     const std::vector<float>& weight, int64_t gap) {
        const std::vector<float> query = of.query(std::ssize(weight) / of.params.heads, random_);
        EXPECT_TRUE(same(of.choose(*gpu_, sequences, query, weight, gap),
                         of.choose(*cpu_, sequences, query, weight, gap)));
    }

    Random random_{17};
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
};

TEST_F(CudaIndexer, ChoosesAsTheCpuInFewAndManyRows) {
    const Ranking of = ranking(32, 128, 4, 2048, 2, 700);
    expect_same(of, {{1, 2794, 3}});
    expect_same(of, {{0, 2047, 1}, {1, 2048, 5}, {-1, 2500, 2}, {0, 2791, 9}, {1, 100, 3}});
    std::vector<Sequence> many;
    for (int32_t i = 0; i < 11; ++i) many.push_back({i % 2, 2040 + 69 * i, 1 + i % 3});
    expect_same(of, many);
}

TEST_F(CudaIndexer, ChoosesAsTheCpuInAnyShape) {
    for (const auto& [heads, d, pool, topk] :
         {std::array{17, 20, 5, 15}, {40, 200, 4, 64}, {8, 129, 1, 7}, {33, 128, 2, 64}}) {
        for (const int64_t gap : {0, 4, 5}) {
            const Ranking of = ranking(heads, d, pool, topk, 2, 90);
            expect_same(of, {{1, 80 * pool, 7}, {0, 0, 2}, {0, 33 * pool + 1, 4}}, gap);
        }
    }
}

// Small whole numbers and scales of powers of two: exact on both, with many ties.
TEST_F(CudaIndexer, TiesGoToTheLowestOfManyPools) {
    Ranking of = ranking(4, 16, 2, 3000, 1, 9000);
    for (float& value : of.pools) value = std::round(value / 2);
    for (const int32_t position : {3001, 4096, 4097, 8192, 17990}) {
        std::vector<float> query = of.query(3, random_);
        for (float& value : query) value = std::round(value / 2);
        const std::vector<float> weight = {1, -1, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
        const std::vector<Sequence> rows = {{0, position, 3}};
        EXPECT_TRUE(same(of.choose(*gpu_, rows, query, weight, 0),
                         of.choose(*cpu_, rows, query, weight, 0)));
    }
}

TEST_F(CudaIndexer, ANanIsNeverPreferred) {
    Ranking of = ranking(32, 128, 4, 64, 1, 100);
    for (size_t p = 0; p < 100; p += 3) of.pools[p * 128 + p] = std::nanf("");
    // All other scores are below zero.
    expect_same(of, {{0, 390, 3}}, std::vector<float>(3 * 32, -1.0f), 0);
    for (float& value : of.pools) value = std::nanf("");
    expect_same(of, {{0, 390, 3}});
}

// One row's choice among nearly equal scores shows any difference of its arithmetic.
TEST_F(CudaIndexer, ARowChoosesTheSameInAnyCompany) {
    Ranking of = ranking(32, 128, 4, 1024, 1, 600);
    for (size_t i = 128; i < of.pools.size(); ++i) {
        of.pools[i] = of.pools[i % 128] * (1.0f + 1e-6f * of.pools[i]);
    }
    const std::vector<float> query = of.query(40, random_);
    const std::vector<float> weight = random_.normals(40 * 32);
    const int64_t width = 1024 + 3;
    const auto whole = of.choose(*gpu_, {{0, 2300, 40}}, query, weight, 0);
    for (const int32_t each : {1, 2, 3, 5, 13}) {
        for (const int32_t first : {0, 13, 27}) {
            std::vector<Sequence> sequences;
            for (int32_t r = 0; r + each <= 13; r += each) {
                sequences.push_back({0, 2300 + first + r, each});
            }
            const auto m = static_cast<int64_t>(std::ssize(sequences)) * each;
            const auto part =
                of.choose(*gpu_, sequences,
                          {query.begin() + first * 4096, query.begin() + (first + m) * 4096},
                          {weight.begin() + first * 32, weight.begin() + (first + m) * 32}, 0);
            EXPECT_TRUE(same(std::span(part).first(static_cast<size_t>(m * width)),
                             std::span(whole).subspan(static_cast<size_t>(first * width),
                                                      static_cast<size_t>(m * width))))
                << each << " rows from " << first;
        }
    }
}

// Keys and gates of 70 tokens of a slot, in passes of the lengths given, beside another sequence.
struct Pooled {
    std::vector<float> pools, ring;
};

Pooled pool_tokens(Backend& backend, const IndexParams& params, int32_t ring_size,
                   const std::vector<float>& values, const std::vector<int32_t>& lengths) {
    const int64_t d = params.head_dim;
    OnDevice<float> pools(backend, 2, 70 / params.pool * d,
                          std::vector<float>(static_cast<size_t>(2 * (70 / params.pool) * d)), 3);
    OnDevice<float> ring(backend, 2, ring_size * 2 * d,
                         std::vector<float>(static_cast<size_t>(ring_size * 4 * d)), 3);
    Uploads uploads(backend);
    const float* ape = uploads.array(values.data(), params.pool * d);
    int32_t position = 0;
    for (const int32_t length : lengths) {
        RowLayout layout(true);
        layout.add(-1, 3, 2);
        layout.add(1, position, length);
        layout.add(0, position, length);
        std::vector<int64_t> at(2, 0);
        for (int32_t i = 0; i < 2 * length; ++i) at.push_back(position + i % length);
        const OnDevice<float> key(backend, layout.m(), d, gather_rows<float>(values, d, at), 2);
        for (int64_t& token : at) token += 70;
        const OnDevice<float> gate(backend, layout.m(), d, gather_rows<float>(values, d, at), 1);
        backend.index_pool({pools.view(), ring.view(), ring_size}, key.view(), gate.view(), ape,
                           params, uploads.rows(layout.rows()));
        position += length;
    }
    return {pools.result(), ring.result()};
}

TEST_F(CudaIndexer, PoolsAndRingAreTheSameInPassesOfAnyLength) {
    for (const auto& [pool, d, ring] :
         {std::array{4, 128, 3}, {4, 128, 16}, {5, 20, 9}, {1, 16, 1}, {7, 200, 6}}) {
        const IndexParams params{.heads = 1, .head_dim = d, .pool = pool, .topk = pool};
        const std::vector<float> values = random_.normals(140 * d);
        const Pooled whole = pool_tokens(*gpu_, params, ring, values, {70});
        for (int32_t trial = 0; trial < 12; ++trial) {
            std::vector<int32_t> lengths;
            for (int32_t left = 70; left > 0; left -= lengths.back()) {
                lengths.push_back(std::min(left, static_cast<int32_t>(random_.integer(1, 24))));
            }
            const Pooled gpu = pool_tokens(*gpu_, params, ring, values, lengths);
            const Pooled cpu = pool_tokens(*cpu_, params, ring, values, lengths);
            EXPECT_TRUE(same(gpu.ring, cpu.ring));
            EXPECT_TRUE(same(gpu.pools, whole.pools));
            EXPECT_TRUE(near_enough(gpu.pools, cpu.pools, kGpuSequenceRelativeRms));
        }
    }
}

}  // namespace
}  // namespace quadrille::test
