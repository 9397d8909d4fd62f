// SPDX-License-Identifier: Apache-2.0
// Gumbel noise from 64 random bits, the same bits on every machine: own logarithm, only rounded
// double operations. argmax over v of (log p_v + gumbel_v) is a draw from p.
#pragma once

#include "kernels/host_device.h"
#include "kernels/philox.h"

#include <bit>
#include <cstdint>

namespace quadrille {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// ln(x) of a positive normal number, within 4 units in the last place.
QUADRILLE_HOST_DEVICE constexpr double noise_log(double x) {
    using ieee::add;
    using ieee::mul;
    auto bits = std::bit_cast<uint64_t>(x);
    auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double mantissa = std::bit_cast<double>(bits);  // [1, 2)
    if (mantissa > 0x1.6a09e667f3bcdp+0) {          // sqrt(2): the fraction is small on both sides
        mantissa = mul(mantissa, 0.5);
        ++exponent;
    }
    // ln(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716; the series of 11 terms in s^2.
    const double s = add(mantissa, -1.0) / add(mantissa, 1.0);
    const double square = mul(s, s);
    constexpr double kOver[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    double sum = 0.0;
    for (const double term : kOver) sum = add(mul(sum, square), term);
    return add(mul(static_cast<double>(exponent), kLn2), mul(mul(2.0, s), sum));
}

// The uniform number of 64 bits: (k + 1/2) / 2^52, never 0 or 1.
QUADRILLE_HOST_DEVICE constexpr double uniform_of(uint64_t bits) {
    return ieee::mul(ieee::add(static_cast<double>(bits >> 12), 0.5), 0x1p-52);
}

// -ln(-ln(u)): from -3.61 to 36.8.
QUADRILLE_HOST_DEVICE constexpr double gumbel_of(uint64_t bits) {
    return -noise_log(-noise_log(uniform_of(bits)));
}

// At least gumbel_of(bits), without a logarithm: -ln u >= 1 - u = (j - 1/2) / 2^52, j = 2^52 - k.
QUADRILLE_HOST_DEVICE constexpr double gumbel_bound(uint64_t bits) {
    const uint64_t j = (uint64_t{1} << 52) - (bits >> 12);
#if defined(__CUDA_ARCH__)
    const int width = 64 - __clzll(static_cast<long long>(j));
#else
    const int width = static_cast<int>(std::bit_width(j));
#endif
    return ieee::mul(54.0 - width, 0.6931472);  // a little more than ln 2 each
}

QUADRILLE_HOST_DEVICE constexpr double gumbel(uint64_t seed, int64_t position, Stream stream,
                                              int32_t token) {
    return gumbel_of(noise_bits_of(seed, position, stream, token));
}

}  // namespace quadrille
