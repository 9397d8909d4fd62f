// SPDX-License-Identifier: Apache-2.0
// Sums of exponentials that are exact: each term is rounded once, to 32 bits and a power of two,
// and terms are added as integers on a grid that no data moves. The sum therefore depends on the
// set of terms alone, not on their order nor on how ranks share the vocabulary, and ranks need not
// know the largest logit beforehand.
#pragma once

#include "kernels/host_device.h"
#include "kernels/noise.h"

#include <cstdint>

namespace quadrille {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;

// mantissa * 2^exponent / 2^31, mantissa in [2^31, 2^32]; mantissa 0: nothing.
struct ExpTerm {
    int64_t mantissa = 0;
    int64_t exponent = 0;
};

// 2^x, rounded to 32 bits (relative error below 2^-31). NaN and -inf: nothing.
QUADRILLE_HOST_DEVICE constexpr ExpTerm exp2_term(double x) {
    using ieee::add;
    using ieee::mul;
    constexpr double kLimit = 0x1p60;  // beyond it only the order of terms is kept
    if (!(x >= -1.79e308)) return {};
    if (x > kLimit) x = kLimit;
    if (x < -kLimit) x = -kLimit;
    auto exponent = static_cast<int64_t>(x);
    if (static_cast<double>(exponent) > x) --exponent;
    // 2^f = sqrt(2) * e^y, |y| <= ln(2) / 2: nine powers give 7e-12.
    const double y = mul(add(add(x, -static_cast<double>(exponent)), -0.5), kLn2);
    constexpr double kOver[] = {1.0 / 9, 1.0 / 8, 1.0 / 7, 1.0 / 6, 1.0 / 5,
                                1.0 / 4, 1.0 / 3, 1.0 / 2, 1.0};
    double power = 1.0;
    for (const double over : kOver) power = add(mul(mul(power, y), over), 1.0);
    const double mantissa = mul(power, 0x1.6a09e667f3bcdp+0 * 0x1p31);
    return {static_cast<int64_t>(add(mantissa, 0.5)), exponent};
}

// sum over j of limb[j] * 2^(kBits * (top - j)) / 2^31. Plain words: it travels between ranks.
struct ExpSum {
    static constexpr int kLimbs = 8;
    static constexpr int kBits = 8;  // exponents of a limb; the window is 64 bits, at least 57 used
    static constexpr int64_t kEmpty = -(int64_t{1} << 60);

    int64_t top = kEmpty;
    int64_t limb[kLimbs] = {};

    QUADRILLE_HOST_DEVICE constexpr bool empty() const { return top == kEmpty; }

    // Makes `index` the top limb if it is above; what falls below the window is dropped.
    QUADRILLE_HOST_DEVICE constexpr void raise(int64_t index) {
        if (index <= top) return;
        const int64_t by = empty() || index - top > kLimbs ? kLimbs : index - top;
        for (int64_t j = kLimbs - 1; j >= 0; --j) limb[j] = j >= by ? limb[j - by] : 0;
        top = index;
    }
    // At most 2^23 terms.
    QUADRILLE_HOST_DEVICE constexpr void add(ExpTerm term) {
        if (term.mantissa == 0) return;
        const int64_t index = term.exponent >> 3;
        raise(index);
        const int64_t below = top - index;
        if (below < kLimbs) limb[below] += term.mantissa << (term.exponent & 7);
    }
    QUADRILLE_HOST_DEVICE constexpr void add(const ExpSum& other) {
        if (other.empty()) return;
        raise(other.top);
        const int64_t below = top - other.top;
        for (int64_t j = 0; j + below < kLimbs; ++j) limb[j + below] += other.limb[j];
    }
    // The sum over 2^(kBits * scale) / 2^31, rounded the same way for the same sum.
    QUADRILLE_HOST_DEVICE constexpr double over(int64_t scale) const {
        double sum = 0.0;
        double weight = 1.0;
        for (int64_t j = top; j < scale && weight > 0.0; ++j) weight = ieee::mul(weight, 0x1p-8);
        for (int j = 0; j < kLimbs; ++j) {
            sum = ieee::add(sum, ieee::mul(static_cast<double>(limb[j]), weight));
            weight = ieee::mul(weight, 0x1p-8);
        }
        return sum;
    }
    // Natural logarithm of the sum; it must not be empty.
    QUADRILLE_HOST_DEVICE constexpr double log() const {
        return ieee::add(
            ieee::mul(static_cast<double>(kBits) * static_cast<double>(top) - 31.0, kLn2),
            noise_log(over(top)));
    }
    friend constexpr bool operator==(const ExpSum&, const ExpSum&) = default;
};
static_assert(sizeof(ExpSum) == 72 && ExpSum::kBits == 8, "add() shifts by the grid");

}  // namespace quadrille
