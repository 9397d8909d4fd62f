// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/ridge.h"

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/make_train_ops.h"
#include "kernels/parallel.h"
#include "kernels/quantize/cholesky.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quadrille {
namespace {

constexpr int64_t kRows = 1024;   // summed in fp32
constexpr int64_t kPanel = 256;   // inputs whose sums a thread makes at once
constexpr int64_t kAlign = 64;    // of a Cholesky factor
constexpr int64_t kColumns = 64;  // outputs that a thread solves at once

// to (a.cols, b.cols) += a^T b
void add_product(double* to, int64_t stride, View<const float> a, View<const float> b) {
    const auto backend = make_backend("cpu");
    const auto ops = make_train_ops(*backend);
    std::vector<float> sums(static_cast<size_t>(a.cols * b.cols));
    ops->product({sums.data(), a.cols, b.cols}, a, b, ProductForm::tn, false);
    for (int64_t i = 0; i < a.cols; ++i) {
        const float* from = sums.data() + i * b.cols;
        for (int64_t j = 0; j < b.cols; ++j) to[i * stride + j] += static_cast<double>(from[j]);
    }
}

}  // namespace

Ridge::Ridge(int64_t inputs, int64_t outputs, int32_t threads)
    : inputs_(inputs),
      padded_((inputs + kAlign - 1) / kAlign * kAlign),
      outputs_(outputs),
      threads_(threads),
      squares_(static_cast<size_t>(padded_ * padded_)),
      products_(static_cast<size_t>(inputs * outputs)) {}

void Ridge::add(View<const float> x, View<const float> y) {
    require(x.cols == inputs_ && y.cols == outputs_ && x.rows == y.rows, "rows of a ridge map");
    rows_ += x.rows;
    const int64_t panels = (inputs_ + kPanel - 1) / kPanel;
    for (int64_t first = 0; first < x.rows; first += kRows) {
        const int64_t count = std::min(kRows, x.rows - first);
        const View<const float> a = x.slice_rows(first, count);
        const View<const float> b = y.slice_rows(first, count);
        parallel_for(threads_, 2 * panels, [&](int64_t piece) {
            const int64_t begin = piece / 2 * kPanel;
            const View<const float> left = a.slice_cols(begin, std::min(kPanel, inputs_ - begin));
            if (piece % 2 == 0) {
                add_product(squares_.data() + begin * padded_, padded_, left,
                            a.slice_cols(0, begin + left.cols));
            } else {
                add_product(products_.data() + begin * outputs_, outputs_, left, b);
            }
        });
    }
}

// squares_: diagonal 1; what no row has, and the padding, is the identity.
void Ridge::scale_inputs() {
    scale_.assign(static_cast<size_t>(inputs_), 0);
    for (int64_t i = 0; i < inputs_; ++i) {
        const double square = squares_[static_cast<size_t>(i * padded_ + i)];
        if (!std::isfinite(square)) {
            throw Error(ErrorKind::input, fmt::format("ridge map: the squares of input {} sum to "
                                                      "{}; expected a finite number",
                                                      i, square));
        }
        if (square > 0) scale_[static_cast<size_t>(i)] = 1 / std::sqrt(square);
    }
    for (int64_t i = 0; i < padded_; ++i) {
        double* row = squares_.data() + i * padded_;
        for (int64_t j = 0; j < i && i < inputs_; ++j) {
            row[j] *= scale_[static_cast<size_t>(i)] * scale_[static_cast<size_t>(j)];
        }
        row[i] = 1;
    }
}

std::vector<float> Ridge::solve(double damping) {
    if (rows_ == 0) throw Error(ErrorKind::input, "ridge map: no rows to fit it to");
    require(damping > 0, "a ridge map is damped");
    scale_inputs();
    for (int64_t i = 0; i < padded_; ++i) {
        squares_[static_cast<size_t>(i * padded_ + i)] += damping;
    }
    if (!quantize::cholesky(squares_.data(), padded_, threads_)) {
        throw Error(ErrorKind::input, fmt::format("ridge map: damping {} is too little for {} rows "
                                                  "of {} inputs; expected more",
                                                  damping, rows_, inputs_));
    }
    std::vector<float> map(static_cast<size_t>(outputs_ * inputs_));
    parallel_for(threads_, (outputs_ + kColumns - 1) / kColumns, [&](int64_t piece) {
        const int64_t first = piece * kColumns;
        solve_columns(first, std::min(kColumns, outputs_ - first), map);
    });
    return map;
}

// Both triangles go through the factor's rows, which are contiguous.
void Ridge::solve_columns(int64_t first, int64_t count, std::vector<float>& map) const {
    std::vector<double> z(static_cast<size_t>(inputs_ * count));
    const auto subtract = [&](int64_t to, int64_t from, double factor) {
        double* a = z.data() + to * count;
        const double* b = z.data() + from * count;
        for (int64_t c = 0; c < count; ++c) a[c] -= factor * b[c];
    };
    const auto divide = [&](int64_t i, double by) {
        for (int64_t c = 0; c < count; ++c) z[static_cast<size_t>(i * count + c)] /= by;
    };
    for (int64_t i = 0; i < inputs_; ++i) {
        const double* factor = squares_.data() + i * padded_;
        for (int64_t c = 0; c < count; ++c) {
            z[static_cast<size_t>(i * count + c)] =
                scale_[static_cast<size_t>(i)] *
                products_[static_cast<size_t>(i * outputs_ + first + c)];
        }
        for (int64_t j = 0; j < i; ++j) subtract(i, j, factor[j]);
        divide(i, factor[i]);
    }
    for (int64_t i = inputs_; i-- > 0;) {
        const double* factor = squares_.data() + i * padded_;
        divide(i, factor[i]);
        for (int64_t j = 0; j < i; ++j) subtract(j, i, factor[j]);
        for (int64_t c = 0; c < count; ++c) {
            map[static_cast<size_t>((first + c) * inputs_ + i)] = static_cast<float>(
                scale_[static_cast<size_t>(i)] * z[static_cast<size_t>(i * count + c)]);
        }
    }
}

}  // namespace quadrille
