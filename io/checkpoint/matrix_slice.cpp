// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/matrix_slice.h"

#include "kernels/exl3.h"

#include <algorithm>

namespace quadrille {

Range block_share(int64_t width, int parts, int part) {
    const int64_t blocks = exl3::padded(width) / exl3::kBlock;
    const int64_t base = blocks / parts;
    const int64_t larger = blocks % parts;
    const int64_t first = part * base + std::min<int64_t>(part, larger);
    const int64_t count = base + (part < larger ? 1 : 0);
    return {std::min(first * exl3::kBlock, width), std::min((first + count) * exl3::kBlock, width)};
}

int64_t MatrixSlice::n() const {
    int64_t count = 0;
    for (const Range& range : rows) count += range.size();
    return count;
}

}  // namespace quadrille
