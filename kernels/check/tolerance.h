// SPDX-License-Identifier: Apache-2.0
// How far the ops of two backends may lie apart, declared once for the check backend and the tests.
// Each op belongs to one class; loosening a class is a commit of its own with the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace quadrille::check {

// Products on a GPU against the CPU's, relative root mean square. EXL3: inputs rotated in fp32
// enter as fp16 (2.8e-4). Native: inputs as two bf16 terms (2^-17 each) beside bf16 weights, two
// tf32 terms beside f16 and f32.
inline constexpr double kGpuExl3RelativeRms = 5e-4;
inline constexpr double kGpuBf16RelativeRms = 1e-5;
inline constexpr double kGpuTf32RelativeRms = 3e-6;
// A mixture of experts is three products one behind the other.
inline constexpr double kGpuMoeFactor = 3;
// Sequence ops on a GPU: other exponentials and other orders of the sums, all in fp32.
inline constexpr double kGpuSequenceRelativeRms = 1e-5;
// Recurrences and rotations by large angles.
inline constexpr double kGpuRecurrentRelativeRms = 1e-4;
// No element may be off by more than this many root mean squares of the allowed error.
inline constexpr double kGpuWorstElement = 12;
// Scores, relative to the largest magnitude among them, whose order may differ.
inline constexpr double kGpuScoreTie = 1e-5;

struct Difference {
    int64_t element = 0;  // the worst
    std::string allowance;
};

// Root mean square of the error within `relative_rms` of that of `expected`, no element off by more
// than kGpuWorstElement of it; NaN and infinity only where they are expected. 0: the same bits (any
// NaN is like any other).
std::optional<Difference> compare(std::span<const float> found, std::span<const float> expected,
                                  double relative_rms);

}  // namespace quadrille::check
