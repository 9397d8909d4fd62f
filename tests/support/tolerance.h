// SPDX-License-Identifier: Apache-2.0
// The tolerances of all tests, declared once. Each op belongs to one class; loosening a class is a
// commit of its own with the reason. exact: codes, indices, copies, and everything that must not
// depend on company, slices or ranks. rounded: element-wise ops and norms. reduced(k): products and
// other sums of k terms.
#pragma once

#include "kernels/check/tolerance.h"

#include <cstdint>

namespace quadrille::test {

// Golden files of other implementations: absolute, as the specification of the project states.
inline constexpr double kGoldenLogits = 1e-4;
inline constexpr double kGoldenTrace = 1e-4;
// Training against goldens: losses absolute, gradients relative in norm.
inline constexpr double kGoldenLoss = 1e-5;
inline constexpr double kGoldenGradient = 1e-4;
// Derivatives in double against differences of losses: relative.
inline constexpr double kFiniteDifference = 1e-5;
// EXL3 products against the exact product: root mean square of the error over that of the product.
inline constexpr double kExl3RelativeRms = 1e-6;

// Proxy errors of our quantizer over those of the reference's: mean and worst over the golden
// matrices; over matrices drawn as those of its published errors were.
inline constexpr double kQuantizerMeanRatio = 1.00;
inline constexpr double kQuantizerWorstRatio = 1.02;
inline constexpr double kQuantizerAnchorRatio = 1.01;

// A GPU's ops against the CPU's: kernels/check/tolerance.h.
using check::kGpuBf16RelativeRms;
using check::kGpuExl3RelativeRms;
using check::kGpuSequenceRelativeRms;
using check::kGpuTf32RelativeRms;
using check::kGpuWorstElement;

// A GPU against goldens, teacher-forced. Tokens are equal where the golden gap between the two best
// logits is larger than kGpuCertainGap; gaps agree within kGpuGapDifference in kGpuGapShare of the
// positions; kGpuPathShare of the draft paths are identical.
inline constexpr double kGpuCertainGap = 0.05;
inline constexpr double kGpuGapDifference = 0.02;
inline constexpr double kGpuGapShare = 0.99;
inline constexpr double kGpuPathShare = 0.98;

struct Tolerance {
    enum class Class { exact, rounded, reduced };
    Class kind = Class::exact;
    int64_t k = 0;  // reduced: number of terms summed
};

constexpr Tolerance exact() {
    return {};
}
constexpr Tolerance rounded() {
    return {Tolerance::Class::rounded, 0};
}
constexpr Tolerance reduced(int64_t k) {
    return {Tolerance::Class::reduced, k};
}

// rounded: |difference| <= kRoundedUlps units in the last place (fp32) or kRoundedAbsolute.
inline constexpr double kRoundedUlps = 2;
inline constexpr double kRoundedAbsolute = 1e-6;
// reduced: 1 - 2<x,y>/(<x,x> + <y,y>) <= kReducedDistance over the whole result, and each element
// within kReducedFactor * sqrt(k) * 2^-23 * (root mean square of the expected result).
inline constexpr double kReducedDistance = 1e-6;
inline constexpr double kReducedFactor = 4;

}  // namespace quadrille::test
