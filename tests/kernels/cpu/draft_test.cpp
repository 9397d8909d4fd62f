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
        backend_.draft_attention(
            out.view(),
            {queries.view(), keys.view(), values.view(), of_.q_norm.data(), of_.k_norm.data()},
            cache(), of_.params, layout.rows());
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

}  // namespace
}  // namespace quadrille
