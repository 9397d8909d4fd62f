// SPDX-License-Identifier: Apache-2.0
// A decoded panel (128 inputs, 16 outputs) times the rows of a pass, for one instruction set;
// included by exl3_avx512.cpp and exl3_avx2.cpp. The order of sums is that of exl3_block_plain.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/exl3.h"

#if defined(__AVX2__)

namespace quadrille::cpu {
namespace {

// acc[r] (16 of 128 outputs) += the sum over the panel's inputs, from 0, for kRows rows.
template <int kRows>
inline void multiply_panel(float* acc, const float* x, int64_t x_stride, const float* panel) {
    Sixteen part[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) part[r] = zero();
    for (int64_t k = 0; k < exl3::kBlock; ++k) {
        const Sixteen w = load(panel + k * exl3::kTile);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) part[r] = part[r] + broadcast(x[r * x_stride + k]) * w;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        float* to = acc + r * exl3::kBlock;
        store(to, load(to) + part[r]);
    }
}

// All m rows, kMost (4 or 8) at a time.
template <int kMost>
inline void multiply_rows(float* acc, const float* x, int64_t x_stride, int64_t m,
                          const float* panel) {
    for (; m >= kMost; m -= kMost, acc += kMost * exl3::kBlock, x += kMost * x_stride) {
        multiply_panel<kMost>(acc, x, x_stride, panel);
    }
    if constexpr (kMost > 4) {
        if (m == 7) return multiply_panel<7>(acc, x, x_stride, panel);
        if (m == 6) return multiply_panel<6>(acc, x, x_stride, panel);
        if (m == 5) return multiply_panel<5>(acc, x, x_stride, panel);
        if (m == 4) return multiply_panel<4>(acc, x, x_stride, panel);
    }
    if (m == 3) return multiply_panel<3>(acc, x, x_stride, panel);
    if (m == 2) return multiply_panel<2>(acc, x, x_stride, panel);
    if (m == 1) return multiply_panel<1>(acc, x, x_stride, panel);
}

}  // namespace
}  // namespace quadrille::cpu

#endif
