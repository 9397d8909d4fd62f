// SPDX-License-Identifier: Apache-2.0
// View<T>: a matrix somebody else owns. Rows are contiguous, `stride` elements apart.
#pragma once

#include "kernels/error.h"

#include <cstdint>
#include <type_traits>

namespace quadrille {

template <class T>
struct View {
    T* data = nullptr;
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t stride = 0;  // elements from one row to the next, >= cols

    View() = default;
    View(T* pointer, int64_t row_count, int64_t col_count)
        : data(pointer), rows(row_count), cols(col_count), stride(col_count) {}
    View(T* pointer, int64_t row_count, int64_t col_count, int64_t row_stride)
        : data(pointer), rows(row_count), cols(col_count), stride(row_stride) {}

    // View<T> reads as View<const T>.
    template <class U>
    requires(std::is_same_v<T, const U>)
        View(const View<U>& other)  // NOLINT(google-explicit-constructor)
        : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

    T* row(int64_t index) const { return data + index * stride; }

    View slice_rows(int64_t first, int64_t count) const {
        require(first >= 0 && count >= 0 && first + count <= rows, "slice_rows inside the view");
        return {data + first * stride, count, cols, stride};
    }
    View slice_cols(int64_t first, int64_t count) const {
        require(first >= 0 && count >= 0 && first + count <= cols, "slice_cols inside the view");
        return {data + first, rows, count, stride};
    }
    // The same elements as (rows * cols / new_cols, new_cols); the view must have no gaps.
    View reshape(int64_t new_cols) const {
        require(stride == cols && new_cols > 0 && rows * cols % new_cols == 0,
                "reshape of a gapless view into whole rows");
        return {data, rows * cols / new_cols, new_cols};
    }
};

}  // namespace quadrille
