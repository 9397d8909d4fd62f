// SPDX-License-Identifier: Apache-2.0
// Philox against the published known answers; the logarithm, the Gumbel noise and the exact sums
// against the C library, at their ends and in any order.
#include "kernels/noise.h"

#include "kernels/exp_sum.h"
#include "kernels/philox.h"
#include "tests/support/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace quadrille::test {
namespace {

// kat_vectors of Random123 1.14, philox 4x32 10 rounds.
static_assert(philox4x32({0, 0, 0, 0}, 0) ==
              Words4{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
static_assert(philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}) ==
              Words4{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
static_assert(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                         0x299f31d0'a4093822u) ==
              Words4{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});

TEST(Noise, DependsOnSeedPositionStreamAndToken) {
    std::set<uint64_t> all;
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
        for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 31})
            for (const Stream stream : {Stream::token, Stream::draft, Stream::accept})
                for (const int32_t token : {0, 1, 2, 3, 154879})
                    all.insert(noise_bits_of(seed, position, stream, token));
    EXPECT_EQ(all.size(), 3u * 3 * 3 * 5);
}

TEST(Noise, RecordSeedsAreNotNegativeAndDiffer) {
    std::set<int64_t> all;
    for (const uint64_t seed : {uint64_t{0}, ~uint64_t{0}})
        for (int64_t index = 0; index < 100; ++index)
            for (int32_t source = 0; source < 3; ++source)
                for (int32_t sample = 0; sample < 4; ++sample)
                    all.insert(record_seed(seed, index, source, sample));
    EXPECT_EQ(all.size(), 2u * 100 * 3 * 4);
    EXPECT_GE(*all.begin(), 0);
}

TEST(Noise, LogarithmIsWithinUnitsInTheLastPlace) {
    std::mt19937_64 random(1);
    std::vector<double> inputs = {
        1.0,           2.0,           0.5, 1.4142135623730951, 1.4142135623730950, 0x1p-53,
        1.0 - 0x1p-53, 1.0 + 0x1p-52, 36.7};
    for (int i = 0; i < 100000; ++i) inputs.push_back(uniform_of(random()));
    for (int i = 0; i < 100000; ++i) inputs.push_back(std::ldexp(uniform_of(random()), i % 60));
    for (const double x : inputs) {
        const double exact = std::log(x);
        EXPECT_LE(std::abs(noise_log(x) - exact), std::abs(exact) * 8 * 0x1p-53) << x;
    }
}

TEST(Noise, GumbelIsFiniteAtBothEndsAndBelowItsBound) {
    EXPECT_NEAR(gumbel_of(0), -std::log(53 * std::log(2.0)), 1e-12);
    EXPECT_NEAR(gumbel_of(~uint64_t{0}), 53 * std::log(2.0), 1e-12);
    std::mt19937_64 random(2);
    for (int shift = 0; shift < 64; ++shift) {
        for (int i = 0; i < 2000; ++i) {
            // Many with all leading bits set: the upper tail.
            const uint64_t bits = ~(random() >> shift);
            const double exact = -std::log(-std::log(uniform_of(bits)));
            EXPECT_NEAR(gumbel_of(bits), exact, 1e-13 * std::max(1.0, std::abs(exact)));
            EXPECT_GE(gumbel_bound(bits), gumbel_of(bits)) << bits;
        }
    }
}

TEST(Noise, GumbelHasItsDistribution) {
    constexpr int64_t kDraws = 100000;
    std::vector<double> uniforms;
    for (int64_t i = 0; i < kDraws; ++i) {
        const double g = gumbel(7, i, Stream::token, static_cast<int32_t>(i % 5));
        uniforms.push_back(std::exp(-std::exp(-g)));
    }
    EXPECT_GT(uniform_p(uniforms), 1e-3);
    for (double& u : uniforms) u = std::pow(u, 1.02);  // the test sees a bias of 2 %
    EXPECT_LT(uniform_p(uniforms), 1e-3);
}

TEST(ExpSum, TermsAreRoundedPowersOfTwo) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 100000; ++i) {
        const double x = (uniform_of(random()) - 0.5) * 400;
        const ExpTerm term = exp2_term(x);
        EXPECT_GE(term.mantissa, int64_t{1} << 31);
        EXPECT_LE(term.mantissa, int64_t{1} << 32);
        const double value =
            std::ldexp(static_cast<double>(term.mantissa), static_cast<int>(term.exponent) - 31);
        EXPECT_NEAR(value / std::exp2(x), 1.0, 0x1p-31);
    }
    EXPECT_EQ(exp2_term(0.0).mantissa, int64_t{1} << 31);
    EXPECT_EQ(exp2_term(std::nan("")).mantissa, 0);
    EXPECT_EQ(exp2_term(-INFINITY).mantissa, 0);
    EXPECT_EQ(exp2_term(INFINITY).exponent, int64_t{1} << 60);
}

TEST(ExpSum, DependsOnTheSetOfTermsAlone) {
    std::mt19937_64 random(4);
    for (const double spread : {1.0, 30.0, 300.0}) {
        std::vector<double> x(2000);
        for (double& value : x) value = (uniform_of(random()) - 0.5) * spread;
        ExpSum reference;
        for (const double value : x) reference.add(exp2_term(value));
        for (int trial = 0; trial < 8; ++trial) {
            std::shuffle(x.begin(), x.end(), random);
            if (trial == 0) std::sort(x.begin(), x.end());
            std::vector<ExpSum> parts(static_cast<size_t>(trial + 1));
            for (size_t i = 0; i < x.size(); ++i)
                parts[random() % parts.size()].add(exp2_term(x[i]));
            ExpSum sum;
            for (const ExpSum& part : parts) sum.add(part);
            EXPECT_EQ(sum, reference);
        }
    }
}

TEST(ExpSum, IsTheLogarithmOfTheSum) {
    std::mt19937_64 random(5);
    for (const double shift : {0.0, -700.0, 9000.0}) {
        std::vector<double> logits(150000);
        for (double& value : logits) value = shift + 12 * (uniform_of(random()) - 0.5);
        ExpSum sum;
        for (const double value : logits) sum.add(exp2_term(value * kLog2E));
        const double largest = *std::max_element(logits.begin(), logits.end());
        double exact = 0;
        for (const double value : logits) exact += std::exp(value - largest);
        EXPECT_NEAR(sum.log(), largest + std::log(exact), 1e-9);
        EXPECT_NEAR(sum.over(sum.top + 1) * 256, sum.over(sum.top), 1e-9 * sum.over(sum.top));
    }
    ExpSum empty;
    EXPECT_TRUE(empty.empty());
    empty.add(ExpSum{});
    EXPECT_TRUE(empty.empty());
}

TEST(Statistics, KnownValues) {
    EXPECT_NEAR(chi_square_tail(3.841458820694124, 1), 0.05, 1e-12);
    EXPECT_NEAR(chi_square_tail(18.307038053275146, 10), 0.05, 1e-12);
    EXPECT_NEAR(chi_square_tail(149.449, 100), 0.001, 1e-6);
    EXPECT_NEAR(chi_square_tail(61.918, 100), 0.999, 1e-6);
    EXPECT_NEAR(kolmogorov_tail(1.3581 / std::sqrt(1e8), 100000000), 0.05, 1e-4);
    const std::vector<int64_t> counts = {10, 0, 1};
    EXPECT_EQ(chi_square(counts, std::vector<double>{1, 0, 0}).p(), 0.0);
}

}  // namespace
}  // namespace quadrille::test
