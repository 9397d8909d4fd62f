// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/tolerance.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace quadrille::check {

namespace {

bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
}

}  // namespace

std::optional<Difference> compare(std::span<const float> found, std::span<const float> expected,
                                  double relative_rms) {
    require(found.size() == expected.size(), "compare arrays of one length");
    double squares = 0;
    double errors = 0;
    double worst = 0;
    int64_t at = -1;
    for (size_t i = 0; i < found.size(); ++i) {
        const auto y = static_cast<double>(expected[i]);
        if (std::isfinite(y)) squares += y * y;
        if (same(found[i], expected[i])) continue;
        const double error = std::abs(static_cast<double>(found[i]) - y);
        if (relative_rms <= 0 || !std::isfinite(error)) {
            return Difference{static_cast<int64_t>(i), relative_rms <= 0 ? "none" : "finite"};
        }
        errors += error * error;
        if (error > worst) {
            worst = error;
            at = static_cast<int64_t>(i);
        }
    }
    if (at < 0) return std::nullopt;
    const auto count = static_cast<double>(found.size());
    const double allowed = relative_rms * (1 + 4 / std::sqrt(count));  // the mean of a few is none
    const double rms = std::sqrt(squares / count);
    const double error = std::sqrt(errors / count);
    if (error <= allowed * rms && worst <= kGpuWorstElement * allowed * rms) return std::nullopt;
    return Difference{at, fmt::format("{:.2g} each, {:.2g} in the mean (found {:.2g})",
                                      kGpuWorstElement * allowed * rms, allowed * rms, error)};
}

}  // namespace quadrille::check
