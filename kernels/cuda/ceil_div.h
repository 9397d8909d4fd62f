// SPDX-License-Identifier: Apache-2.0
// How many pieces of a size cover a whole: tiles, slabs, thread blocks.
#pragma once

#include <cstdint>

namespace quadrille::cuda {

// a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace quadrille::cuda
