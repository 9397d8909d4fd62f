// SPDX-License-Identifier: Apache-2.0
// The tolerances of all tests, declared once. Each op belongs to one class; loosening a class is a
// commit of its own with the reason. exact: codes, indices, copies, and everything that must not
// depend on company, slices or ranks. rounded: element-wise ops and norms. reduced(k): products and
// other sums of k terms.
#pragma once

#include <cstdint>

namespace quadrille::test {

// Golden files of other implementations: absolute, as the specification of the project states.
inline constexpr double kGoldenLogits = 1e-4;
inline constexpr double kGoldenTrace = 1e-4;
// EXL3 products against the exact product: root mean square of the error over that of the product.
inline constexpr double kExl3RelativeRms = 1e-6;

// Products on a GPU against the CPU's, relative root mean square. EXL3: inputs rotated in fp32
// enter as fp16 (2.8e-4), mcg and 3inst weights skip the rounding of their sum (1.6e-4). Native:
// inputs as two bf16 terms (2^-17 each) beside bf16 weights; two tf32 terms beside f16 and f32.
inline constexpr double kGpuExl3RelativeRms = 5e-4;
inline constexpr double kGpuBf16RelativeRms = 1e-5;
inline constexpr double kGpuTf32RelativeRms = 3e-6;
// Sequence ops on a GPU: other exponentials and other orders of the sums, all in fp32.
inline constexpr double kGpuSequenceRelativeRms = 1e-5;
// No element may be off by more than this many root mean squares of the allowed error.
inline constexpr double kGpuWorstElement = 12;

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
