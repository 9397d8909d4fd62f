// SPDX-License-Identifier: Apache-2.0
// The small loops the sequence ops share, beside the sums of kernels/cpu/lanes.h. Each element is
// computed in one fixed order, so a row's bits do not depend on how a loop is cut into vectors.
#pragma once

#include "kernels/cpu/lanes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quadrille::cpu {

// Softmax sums and weighted sums are finished per block of this many positions of the row's own
// list, then added block by block.
inline constexpr int64_t kPositionBlock = 64;

inline float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

// y += a x
inline void add_scaled(float* __restrict y, float a, const float* __restrict x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// y += a[0] x0 + ... + a[3] x3, added one after another: the bits of four add_scaled.
inline void add_scaled4(float* __restrict y, const float* __restrict a, const float* __restrict x0,
                        const float* __restrict x1, const float* __restrict x2,
                        const float* __restrict x3, int64_t n) {
    const float a0 = a[0];
    const float a1 = a[1];
    const float a2 = a[2];
    const float a3 = a[3];
    for (int64_t i = 0; i < n; ++i) {
        y[i] = (((y[i] + a0 * x0[i]) + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i];
    }
}

// scores[i] = exp(scores[i] - max); returns their sum.
inline float exp_of_scores(float* scores, int64_t n) {
    float largest = scores[0];
    for (int64_t i = 1; i < n; ++i) largest = std::max(largest, scores[i]);
    float total = 0.0f;
    for (int64_t first = 0; first < n; first += kPositionBlock) {
        const int64_t end = std::min(n, first + kPositionBlock);
        float sum = 0.0f;
        for (int64_t i = first; i < end; ++i) {
            scores[i] = std::exp(scores[i] - largest);
            sum += scores[i];
        }
        total += sum;
    }
    return total;
}

}  // namespace quadrille::cpu
