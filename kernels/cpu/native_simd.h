// SPDX-License-Identifier: Apache-2.0
// Products with native matrices for one instruction set, included by native_avx512.cpp and
// native_avx2.cpp: the bits of native_rows_plain. A tile of rows and outputs shares its loads.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/paths.h"
#include "kernels/cpu/simd.h"

#if defined(__AVX2__)

namespace quadrille::cpu {
namespace {

// out[r][c] = dot(x[r], w[c]) for kRows x kCols of them.
template <int kRows, int kCols, class T>
inline void dot_tile(float* out, int64_t out_stride, const float* x, int64_t x_stride, const T* w,
                     int64_t w_stride, int64_t k) {
    Sixteen total[kRows][kCols];
#pragma GCC unroll 16
    for (int i = 0; i < kRows * kCols; ++i) total[i / kCols][i % kCols] = zero();
    for (int64_t first = 0; first < k; first += kChunk) {
        const int64_t last = first + kChunk < k ? first + kChunk : k;
        Sixteen part[kRows][kCols];
#pragma GCC unroll 16
        for (int i = 0; i < kRows * kCols; ++i) part[i / kCols][i % kCols] = zero();
        const auto step = [&](const auto& load_x, const auto& load_w) {
            Sixteen weight[kCols];
#pragma GCC unroll 8
            for (int c = 0; c < kCols; ++c) weight[c] = load_w(w + c * w_stride);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const Sixteen value = load_x(x + r * x_stride);
#pragma GCC unroll 8
                for (int c = 0; c < kCols; ++c) part[r][c] = part[r][c] + value * weight[c];
            }
        };
        int64_t i = first;
        for (; i + kLanes <= last; i += kLanes) {
            const auto whole = [i](const auto* row) { return load(row + i); };
            step(whole, whole);
        }
        if (i < last) {
            const auto some = [i, last](const auto* row) { return load_some(row + i, last - i); };
            step(some, some);
        }
#pragma GCC unroll 16
        for (int t = 0; t < kRows * kCols; ++t) {
            total[t / kCols][t % kCols] = total[t / kCols][t % kCols] + part[t / kCols][t % kCols];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows * kCols; ++i) {
        out[i / kCols * out_stride + i % kCols] = fold(total[i / kCols][i % kCols]);
    }
}

// kCols outputs of the rows from r on.
template <int kRows, int kCols, class T>
inline void dot_columns(float* out, int64_t out_stride, const NativeRows& rows, const T* w,
                        int64_t r) {
    for (; r + kRows <= rows.m; r += kRows) {
        dot_tile<kRows, kCols>(out + r * out_stride, out_stride, rows.x + r * rows.x_stride,
                               rows.x_stride, w, rows.matrix->k, rows.k);
    }
    if constexpr (kRows > 1) {
        if (r < rows.m) dot_columns<kRows / 2, kCols>(out, out_stride, rows, w, r);
    }
}

template <int kRows, int kCols, class T>
inline void dot_rows(float* out, int64_t out_stride, const NativeRows& rows) {
    const T* w = static_cast<const T*>(rows.matrix->weights) + rows.first;
    const int64_t n = rows.matrix->n;
    int64_t c = 0;
    for (; c + kCols <= n; c += kCols) {
        dot_columns<kRows, kCols>(out + c, out_stride, rows, w + c * rows.matrix->k, 0);
    }
    for (; c < n; ++c) {
        dot_columns<kRows, 1>(out + c, out_stride, rows, w + c * rows.matrix->k, 0);
    }
}

// kRows x kCols accumulators for many rows, 1 x kSingle for one.
template <int kRows, int kCols, int kSingle>
inline void native_rows_simd(float* out, int64_t out_stride, const NativeRows& rows) {
    const auto run = [&]<class T>(const T*) {
        if (rows.m == 1) return dot_rows<1, kSingle, T>(out, out_stride, rows);
        return dot_rows<kRows, kCols, T>(out, out_stride, rows);
    };
    switch (rows.matrix->dtype) {
        case Dtype::f32:
            return run(static_cast<const float*>(nullptr));
        case Dtype::f16:
            return run(static_cast<const F16*>(nullptr));
        case Dtype::bf16:
            return run(static_cast<const BF16*>(nullptr));
        default:
            return native_rows_plain(out, out_stride, rows);  // names the error
    }
}

}  // namespace
}  // namespace quadrille::cpu

#endif
