// SPDX-License-Identifier: Apache-2.0
// Tests of distributions: chi-square against expected probabilities, Kolmogorov-Smirnov against the
// uniform distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille::test {

// P(X > statistic) of a chi-square variable.
double chi_square_tail(double statistic, double degrees_of_freedom);
// P(D > statistic) of the Kolmogorov-Smirnov statistic of n values, Stephens' correction for small
// n.
double kolmogorov_tail(double statistic, int64_t n);

struct ChiSquare {
    double statistic = 0;
    double degrees_of_freedom = 0;
    double p() const { return chi_square_tail(statistic, degrees_of_freedom); }
};

// Cells expected less than 5 times are joined. A count in a cell of probability 0 makes the
// statistic infinite.
ChiSquare chi_square(std::span<const int64_t> counts, std::span<const double> probabilities);

// The p-value of "these values are uniform on (0, 1)".
double uniform_p(std::vector<double> values);

}  // namespace quadrille::test
