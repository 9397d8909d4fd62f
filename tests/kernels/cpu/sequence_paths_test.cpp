// SPDX-License-Identifier: Apache-2.0
// Every set of sequence loops this machine has against the plain one: the same bits, at widths that
// are and are not multiples of a register. exp and sigmoid against the C library.
#include "kernels/cpu/sequence_paths.h"

#include "kernels/cpu/exponential.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille::cpu {
namespace {

using namespace test;

size_t size(int64_t n) {
    return static_cast<size_t>(n);
}

class Sets : public testing::TestWithParam<Isa> {
  protected:
    void SetUp() override {
        if (!has_isa(GetParam())) GTEST_SKIP() << "no " << name(GetParam()) << " here";
    }
    // Both sets write to guarded outputs of `count` elements.
    template <class Run>
    void expect_same(int64_t count, const Run& run) {
        Guarded<float> expected(1, count), found(1, count);
        run(sequence_paths_of(Isa::plain), expected.data());
        run(sequence_paths_of(GetParam()), found.data());
        EXPECT_TRUE(expected.written() && found.written());
        EXPECT_TRUE(same(found.values(), expected.values()));
    }
    Random random_{5};
};

constexpr int64_t kWidths[] = {1, 5, 16, 17, 40, 64, 100, 128, 130, 256, 300, 512};

TEST_P(Sets, KdaLoops) {
    for (const int64_t d : kWidths) {
        SCOPED_TRACE(d);
        for (const int64_t taps : {int64_t{4}, int64_t{3}, int64_t{8}}) {
            const std::vector<float> rows = random_.normals(taps * (d + 3));
            const std::vector<float> weight = random_.normals((d + 3) * taps);
            std::vector<const float*> in;
            for (int64_t j = 0; j < taps; ++j) in.push_back(rows.data() + j * (d + 3));
            const ShortConvolution of{in.data(), weight.data(), taps, 3, d};
            expect_same(d,
                        [&](const SequencePaths& loops, float* out) { loops.convolve(out, of); });
        }
        const std::vector<float> a = random_.normals(d, 3.0f), b = random_.normals(d);
        expect_same(d, [&](const SequencePaths& loops, float* out) {
            loops.decay(out, a.data(), b.data(), 1.3f, -5.0f, d);
        });
        expect_same(2 * d, [&](const SequencePaths& loops, float* out) {
            std::copy(a.begin(), a.end(), out);
            std::copy(b.begin(), b.end(), out + d);
            loops.normalise(out, 0.7f, 1e-6f, d);
            loops.gated_norm(out + d, a.data(), a.data(), 1e-5f, d);
        });
    }
}

TEST_P(Sets, DeltaRule) {
    for (const int64_t d : kWidths) {
        if (d > 256) continue;
        SCOPED_TRACE(d);
        const std::vector<float> state = random_.normals(d * d), q = random_.normals(d);
        const std::vector<float> k = random_.normals(d, 0.1f), v = random_.normals(d);
        const std::vector<float> decay = random_.uniforms(d, 0.01f, 1.0f);
        const auto run = [&](const SequencePaths& loops, float* out, bool read, bool store) {
            DeltaRule of{.k = k.data(), .v = v.data(), .decay = decay.data(), .beta = 0.4f};
            Guarded<float> result(1, d), scratch(1, d);
            of.q = read ? q.data() : nullptr;
            of.out = read ? result.data() : nullptr;
            of.scratch = scratch.data();
            of.d = d;
            of.store = store;
            std::copy(state.begin(), state.end(), out);
            loops.delta_rule(out, of);
            EXPECT_TRUE(scratch.intact() && result.intact());
            if (read) std::copy_n(result.data(), d, out + d * d);
        };
        for (const bool store : {true, false}) {
            expect_same(d * (d + 1), [&](const SequencePaths& loops, float* out) {
                run(loops, out, true, store);
            });
        }
        // Replaying leaves the state a step leaves; reading leaves the state alone and returns
        // what the step returns.
        const SequencePaths& loops = sequence_paths_of(GetParam());
        std::vector<float> step(size(d * (d + 1))), read(step), replayed(step);
        run(loops, step.data(), true, true);
        run(loops, read.data(), true, false);
        run(loops, replayed.data(), false, true);
        const size_t n = size(d * d);
        EXPECT_TRUE(same({replayed.data(), n}, {step.data(), n}));
        EXPECT_TRUE(same({read.data(), n}, state));
        EXPECT_TRUE(same({read.data() + n, size(d)}, {step.data() + n, size(d)}));
    }
}

TEST_P(Sets, Attention) {
    for (const int64_t d : {int64_t{5}, int64_t{64}, int64_t{128}, int64_t{513}}) {
        for (const int64_t n : {1, 2, 4, 15, 63, 64, 65, 131, 200}) {
            SCOPED_TRACE(testing::Message() << d << " x " << n);
            const int64_t width = d + 7, heads = 3, offset = 2;
            const std::vector<float> query = random_.normals(heads * d);
            const std::vector<float> key = random_.normals(n * (d + offset));
            const std::vector<float> value = random_.normals(n * (width + offset));
            std::vector<const float*> keys, values;
            for (const int64_t i : random_.permutation(n)) {
                keys.push_back(key.data() + i * (d + offset));
                values.push_back(value.data() + i * (width + offset));
            }
            Guarded<float> scores(heads, n);
            Attention of{.query = query.data(), .heads = heads, .d = d, .keys = keys.data()};
            of.values = values.data();
            of.offset = offset;
            of.width = width;
            of.n = n;
            of.scale = 0.2f;
            of.scores = scores.data();
            expect_same(heads * width,
                        [&](const SequencePaths& loops, float* out) { loops.attend(out, of); });
            EXPECT_TRUE(scores.intact());
        }
    }
}

TEST_P(Sets, CombinationsOfWeightRows) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
        for (const int64_t k : {int64_t{5}, int64_t{64}, int64_t{130}, int64_t{512}}) {
            const std::vector<float> weights = random_.normals(50 * k);
            const std::vector<BF16> bf16 = to_bf16s(weights);
            const std::vector<F16> f16 = to_f16s(weights);
            Matrix matrix;
            matrix.n = 50;
            matrix.k = k;
            matrix.dtype = dtype;
            matrix.weights = dtype == Dtype::f32    ? static_cast<const void*>(weights.data())
                             : dtype == Dtype::bf16 ? static_cast<const void*>(bf16.data())
                                                    : f16.data();
            const std::vector<float> x = random_.normals(3 * 45);
            Guarded<float> scratch(kCombinedRows, k);
            Combination of{.x = x.data(), .x_stride = 45, .m = 3, .matrix = &matrix};
            of.first = 7;
            of.count = 41;
            of.scratch = scratch.data();
            expect_same(3 * k, [&](const SequencePaths& loops, float* out) {
                std::fill_n(out, 3 * k, 0.5f);
                loops.combine(out, k, of);
            });
            EXPECT_TRUE(scratch.intact());
        }
    }
}

TEST_P(Sets, SwigluMayWriteOverItsInputs) {
    for (const int64_t n : kWidths) {
        const std::vector<float> gate = random_.normals(n, 5.0f), up = random_.normals(n, 5.0f);
        for (const int which : {0, 1, 2}) {
            expect_same(n, [&](const SequencePaths& loops, float* out) {
                if (which > 0) std::copy_n((which == 1 ? gate : up).data(), n, out);
                loops.swiglu(out, which == 1 ? out : gate.data(), which == 2 ? out : up.data(),
                             4.0f, n);
            });
        }
        std::vector<float> apart(size(n)), over(gate);
        const SequencePaths& loops = sequence_paths_of(GetParam());
        loops.swiglu(apart.data(), gate.data(), up.data(), 4.0f, n);
        loops.swiglu(over.data(), over.data(), up.data(), 4.0f, n);
        EXPECT_TRUE(same(over, apart));
    }
}

TEST_P(Sets, PoolScores) {
    for (const int64_t heads : {int64_t{1}, int64_t{6}, int64_t{16}}) {
        for (const int64_t d : {int64_t{8}, int64_t{20}, int64_t{128}}) {
            const std::vector<float> query = random_.normals(heads * d);
            const std::vector<float> weight = random_.normals(heads);
            const std::vector<float> pools = random_.normals(30 * d);
            PoolScores of{.query = query.data(), .weight = weight.data(), .pools = pools.data()};
            of.heads = heads;
            of.d = d;
            of.count = 30;
            of.score_scale = 0.3f;
            of.head_scale = 0.25f;
            expect_same(
                30, [&](const SequencePaths& loops, float* out) { loops.score_pools(out, of); });
        }
    }
}

INSTANTIATE_TEST_SUITE_P(SequencePaths, Sets, testing::Values(Isa::avx2, Isa::avx512),
                         [](const auto& set) { return std::string(name(set.param)); });

TEST(Exponential, IsWithinOneUnitInTheLastPlace) {
    Random random(1);
    for (int64_t i = 0; i < 3'000'000; ++i) {
        const float x = i % 3 == 0 ? random.uniform(-1, 1) : random.uniform(-86.6f, 88.7f);
        const double exact = std::exp(double{x});
        const float rounded = static_cast<float>(exact);
        const double unit = double{std::nextafter(rounded, INFINITY)} - double{rounded};
        ASSERT_LE(std::abs(double{exp_of(x)} - exact), unit) << x;
    }
}

TEST(Exponential, EndsWhereFloatsEnd) {
    EXPECT_EQ(exp_of(0.0f), 1.0f);
    EXPECT_EQ(exp_of(-0.0f), 1.0f);
    EXPECT_EQ(exp_of(-INFINITY), 0.0f);
    EXPECT_EQ(exp_of(-86.7f), 0.0f);
    EXPECT_GT(exp_of(-86.64f), 0.0f);
    EXPECT_TRUE(std::isfinite(exp_of(88.7228f)));
    EXPECT_EQ(exp_of(88.73f), INFINITY);
    EXPECT_EQ(exp_of(INFINITY), INFINITY);
    EXPECT_EQ(exp_of(1e30f), INFINITY);
    EXPECT_EQ(exp_of(-1e30f), 0.0f);
    EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
    EXPECT_EQ(sigmoid(0.0f), 0.5f);
    EXPECT_EQ(sigmoid(-1e30f), 0.0f);
    EXPECT_EQ(sigmoid(1e30f), 1.0f);
}

}  // namespace
}  // namespace quadrille::cpu
