// SPDX-License-Identifier: Apache-2.0
#include "tests/support/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace quadrille::test {

namespace {

// The regularized upper incomplete gamma function Q(a, x): the series of P below a + 1, Lentz's
// continued fraction above.
double upper_gamma(double a, double x) {
    if (!(x > 0)) return 1.0;
    if (std::isinf(x)) return 0.0;
    const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
    if (x < a + 1) {
        double term = 1.0 / a;
        double sum = term;
        for (int n = 1; n < 100000 && term > sum * 1e-16; ++n) sum += term *= x / (a + n);
        return 1.0 - front * sum;
    }
    constexpr double kTiny = 1e-300;
    double b = x + 1 - a;
    double c = 1 / kTiny;
    double d = 1 / b;
    double fraction = d;
    for (int n = 1; n < 100000; ++n) {
        const double an = -n * (n - a);
        b += 2;
        d = an * d + b;
        d = 1 / (std::abs(d) < kTiny ? kTiny : d);
        c = b + an / c;
        if (std::abs(c) < kTiny) c = kTiny;
        fraction *= d * c;
        if (std::abs(d * c - 1) < 1e-15) break;
    }
    return front * fraction;
}

}  // namespace

double chi_square_tail(double statistic, double degrees_of_freedom) {
    return upper_gamma(degrees_of_freedom / 2, statistic / 2);
}

double kolmogorov_tail(double statistic, int64_t n) {
    const double root = std::sqrt(static_cast<double>(n));
    const double x = (root + 0.12 + 0.11 / root) * statistic;
    double sum = 0;
    for (int j = 1; j <= 100; ++j) sum += (j % 2 == 1 ? 2 : -2) * std::exp(-2.0 * j * j * x * x);
    return std::clamp(x < 0.2 ? 1.0 : sum, 0.0, 1.0);
}

ChiSquare chi_square(std::span<const int64_t> counts, std::span<const double> probabilities) {
    const auto draws =
        static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    ChiSquare result{0, -1};
    double expected = 0;
    double found = 0;
    const auto close_cell = [&] {
        result.statistic += (found - expected) * (found - expected) / expected;
        result.degrees_of_freedom += 1;
        expected = found = 0;
    };
    for (size_t i = 0; i < counts.size(); ++i) {
        if (!(probabilities[i] > 0)) {
            if (counts[i] > 0) result.statistic = std::numeric_limits<double>::infinity();
            continue;
        }
        expected += draws * probabilities[i];
        found += static_cast<double>(counts[i]);
        if (expected >= 5) close_cell();
    }
    if (expected > 0) close_cell();
    return result;
}

double uniform_p(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto n = static_cast<double>(values.size());
    double distance = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const auto below = static_cast<double>(i);
        distance = std::max({distance, values[i] - below / n, (below + 1) / n - values[i]});
    }
    return kolmogorov_tail(distance, static_cast<int64_t>(values.size()));
}

}  // namespace quadrille::test
