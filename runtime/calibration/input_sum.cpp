// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibration/input_sum.h"

#include "io/checkpoint/safetensors.h"
#include "kernels/buffer.h"

#include <algorithm>
#include <cmath>

namespace quadrille {
namespace {

// Rows of a product: fp32 sums within, fp64 sums between.
constexpr int64_t kChunk = 2048;

}  // namespace

InputSum::InputSum(Backend& backend, int64_t k)
    : backend_(backend), k_(k), sum_(static_cast<size_t>(k * k)) {}

void InputSum::add(View<const float> rows, std::span<const float> weights) {
    require(rows.cols == k_, "rows of the matrix's inputs");
    for (int64_t first = 0; first < rows.rows; first += kChunk) {
        const int64_t count = std::min(kChunk, rows.rows - first);
        add_chunk(rows.slice_rows(first, count),
                  weights.empty()
                      ? weights
                      : weights.subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
    }
}

// X^T X is the product of X^T with itself, so that the backend's own op does the work.
void InputSum::add_chunk(View<const float> rows, std::span<const float> weights) {
    const int64_t m = rows.rows;
    transposed_.assign(static_cast<size_t>(k_ * m), 0.0f);
    for (int64_t row = 0; row < m; ++row) {
        const float weight = weights.empty() ? 1.0f : weights[static_cast<size_t>(row)];
        if (weight == 0.0f) continue;
        const float* const from = rows.row(row);
        if (find_non_finite(reinterpret_cast<const std::byte*>(from), Dtype::f32, k_) >= 0) {
            ++left_out_;
            continue;
        }
        ++rows_;
        weight_ += weight;
        const float root = std::sqrt(weight);
        for (int64_t i = 0; i < k_; ++i) {
            transposed_[static_cast<size_t>(i * m + row)] = root * from[i];
        }
    }
    Array<float> in(backend_, k_, m);
    in.upload(transposed_);
    const Array<float> out(backend_, k_, k_);
    Matrix matrix;
    matrix.n = k_;
    matrix.k = m;
    matrix.weights = in.data();
    matrix.dtype = Dtype::f32;
    matrix.segment = {0, m};
    backend_.linear(out.view(), in.view(), matrix);
    product_ = out.download();
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += static_cast<double>(product_[i]);
}

std::vector<float> InputSum::hessian() const {
    std::vector<float> values(sum_.size());
    if (weight_ <= 0) return values;
    for (size_t i = 0; i < sum_.size(); ++i) values[i] = static_cast<float>(sum_[i] / weight_);
    return values;
}

void InputObserver::linear(View<float> out, View<const float> in, const Matrix& weight) {
    watch_(weight.weights, in);
    inner().linear(out, in, weight);
}

void InputObserver::linears(std::span<const Product> group) {
    for (const Product& product : group) watch_(product.weight.weights, product.in);
    inner().linears(group);
}

}  // namespace quadrille
