// SPDX-License-Identifier: Apache-2.0
// Ranges of a matrix's channels, and how a width is cut in parts of whole blocks of 128.
#pragma once

#include "kernels/matrix.h"

#include <array>
#include <cstdint>
#include <vector>

namespace quadrille {

struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
};

// Part `part` of `width` channels cut in `parts` parts of whole blocks; earlier parts are one block
// larger where the blocks do not divide, the last block may be short, late parts may be empty.
Range block_share(int64_t width, int parts, int part);

// The part of an (n, k) matrix to read. Row ranges are concatenated in order (fused q | k | v).
struct MatrixSlice {
    std::vector<Range> rows;  // outputs
    Range cols;               // inputs
    int32_t segments = 1;     // as Matrix::segments, relative to cols.begin
    std::array<int64_t, kSegments + 1> segment{};

    // Rows `rows` of k inputs each.
    static MatrixSlice of_rows(std::vector<Range> rows, int64_t k) {
        return {.rows = std::move(rows), .cols = {0, k}, .segments = 1, .segment = {0, k}};
    }
    int64_t n() const;
    int64_t k() const { return cols.size(); }
};

}  // namespace quadrille
