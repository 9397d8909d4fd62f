// SPDX-License-Identifier: Apache-2.0
// Blockwise Hadamard transforms of host matrices and the random signs that go with them.
#pragma once

#include "kernels/exl3.h"
#include "kernels/philox.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace quadrille::quantize {

// In place: `count` groups of 128 vectors of `width` values; the vectors of a group are transformed
// element by element, orthonormally. width 1: 128 consecutive values.
template <class T>
void hadamard(T* values, int64_t count, int64_t width) {
    const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(exl3::kBlock)));
    for (int64_t group = 0; group < count; ++group) {
        T* first = values + group * exl3::kBlock * width;
        for (int64_t half = 1; half < exl3::kBlock; half *= 2) {
            for (int64_t i = 0; i < exl3::kBlock; ++i) {
                if ((i & half) != 0) continue;
                T* a = first + i * width;
                T* b = a + half * width;
                for (int64_t j = 0; j < width; ++j) {
                    const T sum = a[j] + b[j];
                    b[j] = a[j] - b[j];
                    a[j] = sum;
                }
            }
        }
        for (int64_t i = 0; i < exl3::kBlock * width; ++i) first[i] *= scale;
    }
}

// Which side of a matrix signs belong to: independent draws of one seed.
enum class Side : uint32_t { inputs = 0, outputs = 1 };

inline std::vector<float> random_signs(uint64_t seed, Side side, int64_t count) {
    std::vector<float> signs(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const Words4 words =
            philox4x32({static_cast<uint32_t>(i / 32), static_cast<uint32_t>(i >> 37), 0x51675167u,
                        static_cast<uint32_t>(side)},
                       seed);
        signs[static_cast<size_t>(i)] = (words.x >> (i % 32) & 1u) == 0 ? 1.0f : -1.0f;
    }
    return signs;
}

}  // namespace quadrille::quantize
