// SPDX-License-Identifier: Apache-2.0
// Rows of native matrices as fp32. Exact: every bf16 and fp16 value is an fp32 value.
#pragma once

#include "kernels/dtype.h"
#include "kernels/error.h"
#include "kernels/matrix.h"

#include <algorithm>
#include <cstdint>

namespace quadrille::cpu {

template <class T>
void convert(float* out, const T* in, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]);
}

// out (count): elements [first, first + count) of row `row` of a native matrix.
inline void convert_row(float* out, const Matrix& matrix, int64_t row, int64_t first,
                        int64_t count) {
    const int64_t at = row * matrix.k + first;
    switch (matrix.dtype) {
        case Dtype::f32:
            std::copy_n(static_cast<const float*>(matrix.weights) + at, count, out);
            return;
        case Dtype::f16:
            convert(out, static_cast<const F16*>(matrix.weights) + at, count);
            return;
        case Dtype::bf16:
            convert(out, static_cast<const BF16*>(matrix.weights) + at, count);
            return;
        default:
            require(false, "native matrix of F32, F16 or BF16");
    }
}

inline void convert_row(float* out, const Matrix& matrix, int64_t row) {
    convert_row(out, matrix, row, 0, matrix.k);
}

}  // namespace quadrille::cpu
