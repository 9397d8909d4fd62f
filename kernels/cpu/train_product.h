// SPDX-License-Identifier: Apache-2.0
// Matrix products of training on the CPU: panels of both sides are packed, a tile of outputs stays
// in registers. An output is the sum of chunks of kDepth terms, each summed in order and added in
// order, without fused multiply-adds: the same bits on every path, whatever m and n are. All of it
// has internal linkage, as kernels/cpu/simd.h.
#pragma once

#include "kernels/train_ops.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace quadrille::cpu {
namespace {

// Sixteen values in whatever registers the file is compiled for.
template <class T>
struct LanesOf {
    using Type __attribute__((vector_size(16 * sizeof(T)))) = T;
};
template <class T>
using Lanes = typename LanesOf<T>::Type;

// Not returned: how wide vectors are returned depends on the instruction set.
template <class T>
inline void load_lanes(Lanes<T>& out, const T* from) {
    std::memcpy(&out, from, sizeof out);
}
template <class T>
inline void store_lanes(T* to, const Lanes<T>& x) {
    std::memcpy(to, &x, sizeof x);
}

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;
inline constexpr int kTileLanes = 2;
#else
inline constexpr int kTileRows = 4;
inline constexpr int kTileLanes = 1;
#endif
inline constexpr int64_t kTileCols = 16 * kTileLanes;
inline constexpr int64_t kDepth = 256;  // terms of a chunk

// Element (row, term) of a side, by strides.
template <class T>
struct Side {
    const T* data;
    int64_t row_stride;
    int64_t term_stride;
};

// Rows [row, row + count) of a side, terms first, padded with zeros to `width` rows.
template <class T>
inline void pack(T* to, const Side<T>& side, int64_t row, int64_t count, int64_t width,
                 int64_t first, int64_t depth) {
    if (count < width) std::fill(to, to + depth * width, T{0});
    if (side.term_stride == 1) {
        for (int64_t r = 0; r < count; ++r) {
            const T* from = side.data + (row + r) * side.row_stride + first;
            for (int64_t t = 0; t < depth; ++t) to[t * width + r] = from[t];
        }
        return;
    }
    for (int64_t t = 0; t < depth; ++t) {
        const T* from = side.data + (first + t) * side.term_stride + row * side.row_stride;
        for (int64_t r = 0; r < count; ++r) to[t * width + r] = from[r * side.row_stride];
    }
}

template <class T>
inline void tile(T* out, int64_t stride, const T* a, const T* b, int64_t depth, int64_t rows,
                 int64_t cols) {
    Lanes<T> sum[kTileRows][kTileLanes] = {};
    for (int64_t t = 0; t < depth; ++t) {
        Lanes<T> right[kTileLanes];
        for (int j = 0; j < kTileLanes; ++j) load_lanes(right[j], b + t * kTileCols + 16 * j);
        for (int i = 0; i < kTileRows; ++i) {
            for (int j = 0; j < kTileLanes; ++j) sum[i][j] += a[t * kTileRows + i] * right[j];
        }
    }
    T edge[kTileCols];
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < kTileLanes; ++j) store_lanes(edge + 16 * j, sum[i][j]);
        T* row = out + i * stride;
        for (int64_t c = 0; c < cols; ++c) row[c] += edge[c];
    }
}

// Memory for a loop. Not std::vector: its functions, compiled here for one instruction set, could
// stand in for those of the whole program.
template <class T>
class Room {
  public:
    Room() = default;
    explicit Room(int64_t count) { grow(count); }
    ~Room() { std::free(data_); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    void grow(int64_t count) {
        if (count <= count_) return;
        std::free(data_);
        data_ = static_cast<T*>(std::malloc(static_cast<size_t>(count) * sizeof(T)));
        require(data_ != nullptr, "memory for a loop of training");
        count_ = count;
    }
    T* data() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }

  private:
    T* data_ = nullptr;
    int64_t count_ = 0;
};

template <class T>
struct ProductScratch {
    Room<T> left, right;
};

// out (m, n) += sum over k terms.
template <class T>
inline void multiply(View<T> out, const Side<T>& a, const Side<T>& b, int64_t k,
                     ProductScratch<T>& scratch) {
    const int64_t m = out.rows;
    const int64_t n = out.cols;
    constexpr int64_t kRows = 64;    // of a packed left panel
    constexpr int64_t kCols = 1024;  // of packed right panels
    scratch.left.grow(kRows * kDepth);
    scratch.right.grow((kCols + kTileCols) * kDepth);
    for (int64_t n0 = 0; n0 < n; n0 += kCols) {
        const int64_t n1 = std::min(n, n0 + kCols);
        for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
            const int64_t depth = std::min(kDepth, k - k0);
            for (int64_t c = n0; c < n1; c += kTileCols) {
                pack(scratch.right.data() + (c - n0) * depth, b, c, std::min(kTileCols, n1 - c),
                     kTileCols, k0, depth);
            }
            for (int64_t m0 = 0; m0 < m; m0 += kRows) {
                const int64_t m1 = std::min(m, m0 + kRows);
                for (int64_t r = m0; r < m1; r += kTileRows) {
                    pack(scratch.left.data() + (r - m0) * depth, a, r,
                         std::min<int64_t>(kTileRows, m1 - r), kTileRows, k0, depth);
                }
                for (int64_t c = n0; c < n1; c += kTileCols) {
                    for (int64_t r = m0; r < m1; r += kTileRows) {
                        tile(out.row(r) + c, out.stride, scratch.left.data() + (r - m0) * depth,
                             scratch.right.data() + (c - n0) * depth, depth,
                             std::min<int64_t>(kTileRows, m1 - r), std::min(kTileCols, n1 - c));
                    }
                }
            }
        }
    }
}

template <class T>
inline void product_of(View<T> out, View<const T> a, View<const T> b, ProductForm form, bool add,
                       ProductScratch<T>& scratch) {
    const bool left_turned = form == ProductForm::tn;
    const bool right_turned = form != ProductForm::nt;
    const int64_t k = left_turned ? a.rows : a.cols;
    require((left_turned ? a.cols : a.rows) == out.rows &&
                (right_turned ? b.cols : b.rows) == out.cols &&
                (right_turned ? b.rows : b.cols) == k,
            "product: shapes that fit each other");
    if (!add) {
        for (int64_t i = 0; i < out.rows; ++i) std::fill(out.row(i), out.row(i) + out.cols, T{0});
    }
    const Side<T> left = left_turned ? Side<T>{a.data, 1, a.stride} : Side<T>{a.data, a.stride, 1};
    const Side<T> right =
        right_turned ? Side<T>{b.data, 1, b.stride} : Side<T>{b.data, b.stride, 1};
    multiply(out, left, right, k, scratch);
}

template <class T>
inline T fold_lanes(const Lanes<T>& x) {
    T half[8];
    for (int i = 0; i < 8; ++i) half[i] = x[i] + x[i + 8];
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

template <class T>
inline T dot(const T* a, const T* b, int64_t count) {
    Lanes<T> sum = {};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        Lanes<T> left, right;
        load_lanes(left, a + i);
        load_lanes(right, b + i);
        sum += left * right;
    }
    T total = fold_lanes<T>(sum);
    for (; i < count; ++i) total += a[i] * b[i];
    return total;
}

// y += factor x
template <class T>
inline void add_scaled(T* y, const T* x, T factor, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

}  // namespace
}  // namespace quadrille::cpu
