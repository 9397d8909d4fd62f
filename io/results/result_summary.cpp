// SPDX-License-Identifier: Apache-2.0
#include "io/results/result_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

void add_lists(std::vector<int64_t>& sum, const std::vector<int64_t>& values) {
    if (sum.size() < values.size()) sum.resize(values.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
}

double ratio(int64_t part, int64_t whole) {
    if (whole == 0) return kUnknown;
    return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void ResultSums::add(const Generation& generation) {
    ++records;
    errors += generation.status == Status::error ? 1 : 0;
    tokens += std::ssize(generation.tokens);
    const Acceptance& a = generation.acceptance;
    steps += a.steps;
    drafted += a.drafted;
    accepted += a.accepted;
    emitted += a.emitted;
    add_lists(by_position, a.by_position);
    add_lists(histogram, a.histogram);
    const auto of_record = static_cast<double>(a.steps);
    const auto add_products = [&](Products& products, int64_t value) {
        const auto x = static_cast<double>(value);
        products.squares += x * x;
        products.with_steps += x * of_record;
    };
    stepping_ += a.steps > 0 ? 1 : 0;
    add_products(steps_, a.steps);
    add_products(accepted_, a.accepted);
    if (positions_.size() < a.by_position.size()) positions_.resize(a.by_position.size());
    for (size_t i = 0; i < a.by_position.size(); ++i) add_products(positions_[i], a.by_position[i]);
}

double ResultSums::accepted_per_step() const {
    return ratio(accepted, steps);
}

double ResultSums::emitted_per_step() const {
    return ratio(emitted, steps);
}

double ResultSums::position_rate(size_t position) const {
    return position < by_position.size() ? ratio(by_position[position], steps) : kUnknown;
}

// n / (n - 1) sum (x - rate * s)^2 / (sum s)^2 over n records of s steps: Cochran, Sampling
// Techniques, 1977, equation 6.13, without the correction for a finite population.
double ResultSums::error(double rate, const Products& products) const {
    if (stepping_ < 2) return kUnknown;
    const double spread =
        products.squares - 2 * rate * products.with_steps + rate * rate * steps_.squares;
    const auto n = static_cast<double>(stepping_);
    return std::sqrt(std::max(0.0, spread) * n / (n - 1)) / static_cast<double>(steps);
}

double ResultSums::accept_length_error() const {
    return error(accepted_per_step(), accepted_);
}

double ResultSums::position_error(size_t position) const {
    if (position >= positions_.size()) return kUnknown;
    return error(position_rate(position), positions_[position]);
}

void ResultSummary::add(const Generation& generation) {
    ResultSums::add(generation);
    if (!generation.kind.empty()) kinds[generation.kind].add(generation);
}

}  // namespace quadrille
