// SPDX-License-Identifier: Apache-2.0
// The drafter's ops against sections 1 and 2 of its specification in double precision. Ring places
// nobody may see are NaN.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"
#include "tests/support/row_layout.h"

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

std::vector<double> rotated(const float* in, const std::vector<float>& norm, int64_t position,
                            const DraftAttentionParams& params) {
    const int64_t d = params.head_dim;
    double mean = 0;
    for (int64_t j = 0; j < d; ++j) mean += double(in[j]) * double(in[j]) / double(d);
    std::vector<double> x, out(size(d));
    for (int64_t j = 0; j < d; ++j) {
        x.push_back(double(in[j]) / std::sqrt(mean + double(params.norm_eps)) *
                    double(norm[size(j)]));
    }
    for (int64_t j = 0; j < d / 2; ++j) {
        const double angle =
            double(position) / std::pow(double(params.rope_theta), double(2 * j) / double(d));
        const double low = x[size(j)], high = x[size(j + d / 2)];
        out[size(j)] = low * std::cos(angle) - high * std::sin(angle);
        out[size(j + d / 2)] = high * std::cos(angle) + low * std::sin(angle);
    }
    return out;
}

struct Drafter {
    DraftAttentionParams params;
    std::vector<float> q_norm, k_norm;
    int32_t ring_size;

    Drafter(int32_t heads, int32_t kv_heads, int32_t d, int32_t block, int32_t window, int32_t ring,
            bool causal = false)
        : ring_size(ring) {
        params.heads = heads;
        params.kv_heads = kv_heads;
        params.head_dim = d;
        params.block = block;
        params.window = window;
        params.causal = causal;
        Random random(77);
        q_norm = random.uniforms(d, 0.5f, 1.5f);
        k_norm = random.uniforms(d, 0.5f, 1.5f);
    }
    int64_t width() const { return int64_t{params.kv_heads} * params.head_dim; }
};

// The context of one sequence, and one block behind it.
struct Sequence {
    int32_t length;
    std::vector<float> key, value;  // context (length, width)
    std::vector<float> block_query, block_key, block_value;

    Sequence(const Drafter& of, int32_t tokens, uint64_t seed) : length(tokens) {
        Random random(seed);
        key = random.normals(tokens * of.width());
        value = random.normals(tokens * of.width());
        block_query =
            random.normals(int64_t{of.params.block} * of.params.heads * of.params.head_dim);
        block_key = random.normals(of.params.block * of.width());
        block_value = random.normals(of.params.block * of.width());
    }
};

std::vector<float> expected_block(const Drafter& of, const Sequence& sequence) {
    const auto& p = of.params;
    const int64_t d = p.head_dim;
    std::vector<float> out;
    for (int64_t j = 0; j < p.block; ++j) {
        for (int64_t h = 0; h < p.heads; ++h) {
            const int64_t g = h / (p.heads / p.kv_heads);
            const std::vector<double> q =
                rotated(sequence.block_query.data() + (j * p.heads + h) * d, of.q_norm,
                        sequence.length + j, p);
            double total = 0;
            std::vector<double> sum(size(d));
            for (int64_t at = 0; at < sequence.length + p.block; ++at) {
                const int64_t own = at - sequence.length;
                const int64_t distance = sequence.length + j - at;
                if (p.window > 0 && distance >= p.window) continue;
                if (p.causal && own > j) continue;
                const float* key = own < 0 ? sequence.key.data() + at * of.width()
                                           : sequence.block_key.data() + own * of.width();
                const float* value = own < 0 ? sequence.value.data() + at * of.width()
                                             : sequence.block_value.data() + own * of.width();
                const std::vector<double> k = rotated(key + g * d, of.k_norm, at, p);
                double score = 0;
                for (int64_t c = 0; c < d; ++c) score += q[size(c)] * k[size(c)];
                const double weight = std::exp(score / std::sqrt(double(d)));
                total += weight;
                for (int64_t c = 0; c < d; ++c) sum[size(c)] += weight * double(value[g * d + c]);
            }
            for (const double value : sum) out.push_back(float(value / total));
        }
    }
    return out;
}

class Rings {
  public:
    Rings(const Drafter& of, int64_t slots)
        : of_(of), keys_(garbage(of, slots)), values_(garbage(of, slots)) {}

    DraftCache cache() { return {keys_.view(), values_.view(), of_.ring_size}; }
    bool intact() const { return keys_.intact() && values_.intact(); }
    std::vector<float> all() const {
        std::vector<float> out = keys_.values();
        const std::vector<float> values = values_.values();
        out.insert(out.end(), values.begin(), values.end());
        return out;
    }
    // Appends the context of a sequence in chunks of at most `most` rows; behind each chunk a row
    // that is not to be written.
    void append(const Sequence& sequence, int32_t slot, int32_t most) {
        for (int32_t done = 0; done < sequence.length;) {
            const int32_t rows = std::min(most, sequence.length - done);
            const auto part = [&](const std::vector<float>& from) {
                std::vector<float> values(from.begin() + done * of_.width(),
                                          from.begin() + (done + rows) * of_.width());
                values.resize(values.size() + size(of_.width()), 99.0f);
                return Guarded<float>(rows + 1, of_.width(), values, 4);
            };
            Guarded<float> key = part(sequence.key), value = part(sequence.value);
            std::vector<uint8_t> write(size(rows), 1);
            write.push_back(0);
            RowLayout layout;
            layout.add(slot, done, rows + 1);
            backend_.draft_append(cache(), key.view(), value.view(), of_.k_norm.data(),
                                  write.data(), of_.params, layout.rows());
            done += rows;
        }
        EXPECT_TRUE(intact());
    }
    // One block per sequence; slot -1 where there is none.
    std::vector<float> attend(const std::vector<const Sequence*>& sequences,
                              const std::vector<int32_t>& slots, int64_t gap = 0) {
        RowLayout layout;
        std::vector<float> query, key, value;
        for (size_t i = 0; i < sequences.size(); ++i) {
            layout.add(slots[i], sequences[i]->length, of_.params.block);
            const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
                to.insert(to.end(), from.begin(), from.end());
            };
            append(query, sequences[i]->block_query);
            append(key, sequences[i]->block_key);
            append(value, sequences[i]->block_value);
        }
        const int64_t wide = int64_t{of_.params.heads} * of_.params.head_dim;
        Guarded<float> out(layout.m(), wide, gap), queries(layout.m(), wide, query, gap);
        Guarded<float> keys(layout.m(), of_.width(), key, gap);
        Guarded<float> values(layout.m(), of_.width(), value, gap);
        backend_.draft_attention(out.view(), queries.view(), keys.view(), values.view(),
                                 of_.q_norm.data(), of_.k_norm.data(), cache(), of_.params,
                                 layout.rows());
        EXPECT_TRUE(out.written() && intact());
        return out.values();
    }

  private:
    static Guarded<float> garbage(const Drafter& of, int64_t slots) {
        const int64_t cols = of.ring_size * of.width();
        return {slots, cols, std::vector<float>(size(slots * cols), std::nanf("")), 2};
    }
    const Drafter& of_;
    Guarded<float> keys_, values_;
    cpu::CpuBackend backend_;
};

TEST(DraftAttention, FollowsTheSpecification) {
    struct Variant {
        int32_t heads, kv_heads, d, block, window, ring;
        bool causal;
    };
    for (const Variant& v :
         {Variant{8, 4, 64, 8, 40, 48, false}, Variant{4, 4, 16, 5, 24, 33, false},
          Variant{6, 2, 10, 4, 0, 200, false}, Variant{4, 1, 16, 8, 40, 64, true},
          Variant{2, 2, 8, 8, 3, 11, false}}) {
        const Drafter of(v.heads, v.kv_heads, v.d, v.block, v.window, v.ring, v.causal);
        for (const int32_t length : {0, 1, 23, 39, 40, 41, 64, 130}) {
            const Sequence sequence(of, length, 5);
            Rings rings(of, 3);
            rings.append(sequence, 1, 17);
            EXPECT_TRUE(close(rings.attend({&sequence}, {1}, 3), expected_block(of, sequence),
                              reduced(length + v.block + v.d)))
                << "length " << length << " window " << v.window;
        }
    }
}

TEST(DraftAttention, EveryRuleOfTheMaskMatters) {
    // The reference itself must tell these apart, or the test above proves nothing.
    const Sequence sequence(Drafter(4, 2, 16, 8, 24, 64), 50, 6);
    const auto run = [&](int32_t window, bool causal) {
        const Drafter of(4, 2, 16, 8, window, 64, causal);
        Rings rings(of, 1);
        rings.append(sequence, 0, 64);
        return rings.attend({&sequence}, {0});
    };
    const std::vector<float> right = run(24, false);
    EXPECT_FALSE(within(run(24, true), right, 1e-3));
    EXPECT_FALSE(within(run(0, false), right, 1e-3));
    EXPECT_FALSE(within(run(25, false), right, 1e-3));
    // Bidirectional: the first row changes with the last row's key.
    Sequence changed = sequence;
    changed.block_key.back() += 1.0f;
    const Drafter of(4, 2, 16, 8, 24, 64);
    Rings rings(of, 1);
    rings.append(changed, 0, 64);
    const std::vector<float> other = rings.attend({&changed}, {0});
    EXPECT_FALSE(same({other.data(), 64}, {right.data(), 64}));
}

TEST(DraftAppend, ChunksAndRingWrapsGiveTheSameBits) {
    const Drafter of(4, 2, 16, 8, 24, 37);
    const Sequence sequence(of, 100, 7);
    Rings whole(of, 2);
    whole.append(sequence, 1, 100);
    for (const int32_t most : {1, 3, 8, 36}) {
        Rings chunks(of, 2);
        chunks.append(sequence, 1, most);
        EXPECT_TRUE(same(chunks.all(), whole.all())) << most;
    }
}

TEST(DraftAppend, WritesOnlyTheMarkedRows) {
    const Drafter of(4, 2, 16, 8, 24, 37);
    Rings rings(of, 1);
    Random random(8);
    Guarded<float> key(4, of.width(), random.normals(4 * of.width()));
    Guarded<float> value(4, of.width(), random.normals(4 * of.width()));
    const std::vector<uint8_t> write = {1, 0, 1, 0};
    RowLayout layout;
    layout.add(0, 35, 4);  // wraps behind 36
    cpu::CpuBackend backend;
    backend.draft_append(rings.cache(), key.view(), value.view(), of.k_norm.data(), write.data(),
                         of.params, layout.rows());
    for (int64_t place = 0; place < 37; ++place) {
        const bool written = place == 35 || place == 0;
        EXPECT_EQ(std::isnan(rings.cache().keys.row(0)[place * of.width()]), !written) << place;
        EXPECT_EQ(std::isnan(rings.cache().values.row(0)[place * of.width()]), !written) << place;
    }
}

TEST(DraftAttention, BlocksAreTheSameInAnyCompany) {
    const Drafter of(4, 2, 16, 8, 24, 37);
    std::vector<Sequence> sequences;
    std::vector<std::vector<float>> alone;
    for (int32_t i = 0; i < 5; ++i) {
        sequences.emplace_back(of, 13 * i, 20 + i);
        Rings rings(of, 1);
        rings.append(sequences.back(), 0, 50);
        alone.push_back(rings.attend({&sequences.back()}, {0}));
    }
    const std::vector<int32_t> order = {3, 0, 4, 1, 2};
    Rings rings(of, 7);
    std::vector<const Sequence*> in_pass;
    std::vector<int32_t> slots;
    std::vector<float> expected;
    const std::vector<float> zeros(alone[0].size());
    for (const int32_t i : order) {
        rings.append(sequences[size(i)], 6 - i, 9);
        in_pass.push_back(&sequences[size(i)]);
        slots.push_back(6 - i);
        expected.insert(expected.end(), alone[size(i)].begin(), alone[size(i)].end());
        in_pass.push_back(&sequences[size(i)]);  // padding between
        slots.push_back(-1);
        expected.insert(expected.end(), zeros.begin(), zeros.end());
    }
    EXPECT_TRUE(same(rings.attend(in_pass, slots, 5), expected));
}

TEST(DraftAttention, RefusesARingShorterThanTheWindow) {
    const Drafter of(4, 2, 16, 8, 24, 20);
    const Sequence sequence(of, 50, 7);
    Rings rings(of, 1);
    rings.append(sequence, 0, 9);
    expect_error(ErrorKind::internal, {"ring"}, [&] { rings.attend({&sequence}, {0}); });
}

TEST(DraftConv, FollowsTheSpecificationAndStaysInItsBlock) {
    for (const auto& [taps, group, h, block] :
         {std::array<int32_t, 4>{2, 16, 64, 8}, {3, 4, 20, 5}, {1, 7, 7, 2}, {4, 1, 9, 3}}) {
        const int64_t m = 3 * block;
        const int64_t groups = h / group;
        Random random(8);
        const std::vector<float> in = random.normals(m * h), base = random.normals(taps * h);
        const std::vector<float> dynamic = random.normals(m * taps * groups);
        std::vector<float> expected;
        for (int64_t t = 0; t < m; ++t) {
            for (int64_t c = 0; c < h; ++c) {
                double sum = 0;
                for (int64_t tap = 0; tap < taps && tap <= t % block; ++tap) {
                    sum += (double(base[size(tap * h + c)]) +
                            double(dynamic[size((t * taps + tap) * groups + c / group)])) *
                           double(in[size((t - tap) * h + c)]);
                }
                expected.push_back(float(sum));
            }
        }
        cpu::CpuBackend backend;
        Guarded<float> out(m, h, 3), x(m, h, in, 2), coefficients(m, taps * groups, dynamic, 1);
        backend.draft_conv(out.view(), x.view(), coefficients.view(), base.data(), taps, group,
                           block);
        EXPECT_TRUE(out.written());
        EXPECT_TRUE(close(out.values(), expected, rounded()));
        // A block alone.
        Guarded<float> one(block, h);
        backend.draft_conv(one.view(), x.view().slice_rows(block, block),
                           coefficients.view().slice_rows(block, block), base.data(), taps, group,
                           block);
        const std::vector<float> all = out.values();
        EXPECT_TRUE(same(one.values(), {all.data() + block * h, size(block * h)}));
    }
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
        backend.walk_path(path.view(), walked.view(), unary.view(), candidates.view(),
                          hidden.view().slice_cols(0, used_rank),
                          used_rank > 0 ? codebook(before) : none,
                          used_rank > 0 ? codebook(after) : none, anchor.data(), draws);
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
