// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quadrille::test {

// Own transforms of the engine's bits: std:: distributions differ between standard libraries.
float Random::uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 8) * 0x1p-24f;
}

float Random::normal() {
    const double u = (static_cast<double>(bits()) + 0.5) * 0x1p-32;
    const double v = static_cast<double>(bits()) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v));
}

int64_t Random::integer(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
}

std::vector<float> Random::normals(int64_t count, float scale) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = normal() * scale;
    return out;
}

std::vector<float> Random::uniforms(int64_t count, float low, float high) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = uniform(low, high);
    return out;
}

std::vector<uint16_t> Random::words(int64_t count) {
    std::vector<uint16_t> out(static_cast<size_t>(count));
    for (uint16_t& value : out) value = static_cast<uint16_t>(bits());
    return out;
}

std::vector<int64_t> Random::permutation(int64_t count) {
    std::vector<int64_t> out(static_cast<size_t>(count));
    std::iota(out.begin(), out.end(), 0);
    for (int64_t i = count - 1; i > 0; --i) {
        std::swap(out[static_cast<size_t>(i)], out[static_cast<size_t>(integer(0, i))]);
    }
    return out;
}

std::vector<int64_t> range(int64_t first, int64_t count) {
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), first);
    return all;
}

std::vector<BF16> to_bf16s(std::span<const float> values) {
    std::vector<BF16> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), to_bf16);
    return out;
}

std::vector<F16> to_f16s(std::span<const float> values) {
    std::vector<F16> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), to_f16);
    return out;
}

namespace {

template <class T>
testing::AssertionResult same_elements(std::span<const T> found, std::span<const T> expected) {
    if (found.size() != expected.size()) {
        return testing::AssertionFailure()
               << "found " << found.size() << " elements, expected " << expected.size();
    }
    for (size_t i = 0; i < found.size(); ++i) {
        if (!same_bits(found[i], expected[i])) {
            return testing::AssertionFailure()
                   << fmt::format("element {}: found {}, expected {}", i, found[i], expected[i]);
        }
    }
    return testing::AssertionSuccess();
}

// The worst element relative to its allowance.
class Worst {
  public:
    // False at once when a value is not finite on one side, or the allowance is not kept.
    bool add(size_t index, double found, double expected, double allowance) {
        if (!std::isfinite(found) || !std::isfinite(expected)) {
            const bool equal = found == expected || (std::isnan(found) && std::isnan(expected));
            if (!equal) {
                set(index, found, expected, std::numeric_limits<double>::infinity());
            }
            return equal;
        }
        const double difference = std::abs(found - expected);
        const double share = difference == 0 ? 0 : difference / allowance;
        if (share > share_) set(index, found, expected, share);
        return share <= 1;
    }
    std::string text() const {
        return fmt::format("element {}: found {}, expected {}, {:.2f} of the allowance", index_,
                           found_, expected_, share_);
    }

  private:
    void set(size_t index, double found, double expected, double share) {
        index_ = index;
        found_ = found;
        expected_ = expected;
        share_ = share;
    }

    size_t index_ = 0;
    double found_ = 0;
    double expected_ = 0;
    double share_ = 0;
};

double rounded_allowance(float expected) {
    const float magnitude = std::abs(expected);
    if (!std::isfinite(magnitude)) return kRoundedAbsolute;
    const double next = static_cast<double>(std::nextafter(magnitude, INFINITY));
    return std::max(kRoundedAbsolute, kRoundedUlps * (next - static_cast<double>(magnitude)));
}

}  // namespace

testing::AssertionResult same(std::span<const float> found, std::span<const float> expected) {
    return same_elements(found, expected);
}

testing::AssertionResult same(std::span<const int32_t> found, std::span<const int32_t> expected) {
    return same_elements(found, expected);
}

testing::AssertionResult close(std::span<const float> found, std::span<const float> expected,
                               Tolerance tolerance) {
    if (tolerance.kind == Tolerance::Class::exact || found.size() != expected.size()) {
        return same_elements(found, expected);
    }
    double xx = 0;
    double yy = 0;
    double xy = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const auto x = static_cast<double>(found[i]);
        const auto y = static_cast<double>(expected[i]);
        if (!std::isfinite(x) || !std::isfinite(y)) continue;
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    const double rms = std::sqrt(yy / static_cast<double>(std::max<size_t>(found.size(), 1)));
    const double reduced =
        kReducedFactor * std::sqrt(static_cast<double>(tolerance.k)) * 0x1p-23 * rms;
    Worst worst;
    bool good = true;
    for (size_t i = 0; i < found.size(); ++i) {
        const double allowance =
            tolerance.kind == Tolerance::Class::rounded ? rounded_allowance(expected[i]) : reduced;
        good = worst.add(i, static_cast<double>(found[i]), static_cast<double>(expected[i]),
                         allowance) &&
               good;
    }
    const double distance = xx + yy > 0 ? 1 - 2 * xy / (xx + yy) : 0;
    if (tolerance.kind == Tolerance::Class::reduced && distance > kReducedDistance) {
        return testing::AssertionFailure()
               << fmt::format("distance {:.3g} > {}; {}", distance, kReducedDistance, worst.text());
    }
    if (!good) return testing::AssertionFailure() << worst.text();
    return testing::AssertionSuccess();
}

testing::AssertionResult within(std::span<const float> found, std::span<const float> expected,
                                double absolute) {
    if (found.size() != expected.size()) return same_elements(found, expected);
    Worst worst;
    bool good = true;
    for (size_t i = 0; i < found.size(); ++i) {
        good = worst.add(i, static_cast<double>(found[i]), static_cast<double>(expected[i]),
                         absolute) &&
               good;
    }
    if (!good) return testing::AssertionFailure() << worst.text();
    return testing::AssertionSuccess();
}

double relative_rms(std::span<const float> found, std::span<const double> exact) {
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
        const double difference = static_cast<double>(found[i]) - exact[i];
        error += difference * difference;
        size += exact[i] * exact[i];
    }
    return found.size() == exact.size() ? std::sqrt(error / size)
                                        : std::numeric_limits<double>::infinity();
}

void expect_one_arithmetic_per_row(int64_t pool, int64_t n, const RowRun& run) {
    std::vector<float> alone;
    for (int64_t r = 0; r < pool; ++r) {
        const std::vector<float> row = run(std::span<const int64_t>(&r, 1), 0);
        ASSERT_EQ(std::ssize(row), n) << "values of row " << r;
        alone.insert(alone.end(), row.begin(), row.end());
    }
    Random random(static_cast<uint64_t>(pool));
    for (const int64_t m : kRowCounts) {
        for (const bool permuted : {false, true}) {
            for (const int64_t gap : {int64_t{0}, int64_t{5}}) {
                std::vector<int64_t> rows(static_cast<size_t>(m));
                const std::vector<int64_t> order = random.permutation(pool);
                for (int64_t i = 0; i < m; ++i) {
                    rows[static_cast<size_t>(i)] =
                        permuted ? order[static_cast<size_t>(i % pool)] : i % pool;
                }
                const std::vector<float> expected =
                    gather_rows<float>(std::span<const float>(alone), n, rows);
                EXPECT_TRUE(same(run(rows, gap), expected)) << fmt::format(
                    "{} rows, {}, gap {}", m, permuted ? "permuted" : "in order", gap);
            }
        }
    }
}

}  // namespace quadrille::test
