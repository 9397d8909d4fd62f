// SPDX-License-Identifier: Apache-2.0
// Ridge maps: rows of a known map give it back, the normal equations hold, hostile rows are told.
#include "drafter/train/ridge.h"

#include "kernels/error.h"
#include "kernels/noise.h"
#include "kernels/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace quadrille::test {
namespace {

constexpr int64_t kRows = 1500, kInputs = 300, kOutputs = 70;  // beyond every block size

std::vector<float> draw(int64_t count, uint64_t seed) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        const Words4 words = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, seed);
        values[i] = static_cast<float>(2 * uniform_of(uint64_t{words.x} << 32 | words.y) - 1);
    }
    return values;
}

struct Rows {
    std::vector<float> map = draw(kOutputs * kInputs, 1);
    std::vector<float> x = draw(kRows * kInputs, 2);
    std::vector<float> y = std::vector<float>(static_cast<size_t>(kRows * kOutputs));

    // Inputs differ in size by up to 1000, as channels of taps do.
    Rows() {
        for (size_t i = 0; i < x.size(); ++i) x[i] *= i % kInputs % 7 == 3 ? 1000.0F : 1.0F;
        for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t o = 0; o < kOutputs; ++o) {
                double sum = 0;
                for (int64_t i = 0; i < kInputs; ++i) sum += double{w(o, i)} * double{in(r, i)};
                y[static_cast<size_t>(r * kOutputs + o)] = static_cast<float>(sum);
            }
        }
    }
    float w(int64_t o, int64_t i) const { return map[static_cast<size_t>(o * kInputs + i)]; }
    float in(int64_t r, int64_t i) const { return x[static_cast<size_t>(r * kInputs + i)]; }
    float out(int64_t r, int64_t o) const { return y[static_cast<size_t>(r * kOutputs + o)]; }
    std::vector<float> fit(double damping, int32_t threads, int64_t at_once = kRows) const {
        Ridge ridge(kInputs, kOutputs, threads);
        for (int64_t r = 0; r < kRows; r += at_once) {
            const int64_t count = std::min(at_once, kRows - r);
            ridge.add({x.data() + r * kInputs, count, kInputs},
                      {y.data() + r * kOutputs, count, kOutputs});
        }
        return ridge.solve(damping);
    }
};

TEST(Ridge, GivesBackAMapFromItsRows) {
    const Rows rows;
    const std::vector<float> found = rows.fit(1e-9, 2);
    double error = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const double input = i % kInputs % 7 == 3 ? 1000 : 1;  // as outputs feel a weight
        error += std::pow(input * (double{found[i]} - double{rows.map[i]}), 2);
        size += std::pow(input * double{rows.map[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / size), 1e-5);
}

// The gradient of what is minimised is 0: sum (W x - y) x_i + damping * sum x_i^2 * W_i = 0.
TEST(Ridge, SolvesTheDampedNormalEquations) {
    constexpr double kDamping = 0.3;
    const Rows rows;
    const std::vector<float> found = rows.fit(kDamping, 1);
    for (const int64_t o : {int64_t{0}, kOutputs - 1}) {
        std::vector<double> gradient(kInputs), squares(kInputs), size(kInputs);
        for (int64_t r = 0; r < kRows; ++r) {
            double residual = -double{rows.out(r, o)};
            for (int64_t i = 0; i < kInputs; ++i) {
                residual +=
                    double{found[static_cast<size_t>(o * kInputs + i)]} * double{rows.in(r, i)};
            }
            for (size_t i = 0; i < gradient.size(); ++i) {
                const double value = rows.in(r, static_cast<int64_t>(i));
                gradient[i] += residual * value;
                squares[i] += value * value;
                size[i] += std::abs(residual * value);
            }
        }
        for (size_t i = 0; i < gradient.size(); ++i) {
            const double weight = found[static_cast<size_t>(o) * kInputs + i];
            EXPECT_LT(std::abs(gradient[i] + kDamping * squares[i] * weight), 1e-4 * size[i]) << i;
        }
    }
}

TEST(Ridge, IsTheSameForAnyNumberOfThreads) {
    const Rows rows;
    EXPECT_EQ(rows.fit(1e-3, 1), rows.fit(1e-3, 3));
}

TEST(Ridge, GivesAnInputThatIsAlwaysZeroNoWeight) {
    Rows rows;
    for (size_t r = 0; r < kRows; ++r) rows.x[r * kInputs + 5] = 0;
    const std::vector<float> found = rows.fit(1e-3, 1, 333);
    for (size_t o = 0; o < kOutputs; ++o) EXPECT_EQ(found[o * kInputs + 5], 0) << o;
}

TEST(Ridge, RefusesNoRowsAndInfiniteSums) {
    EXPECT_THROW(Ridge(kInputs, kOutputs, 1).solve(1e-3), Error);
    Rows rows;
    rows.x[7] = std::numeric_limits<float>::infinity();
    EXPECT_THROW(rows.fit(1e-3, 1), Error);
}

}  // namespace
}  // namespace quadrille::test
