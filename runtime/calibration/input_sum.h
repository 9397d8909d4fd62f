// SPDX-License-Identifier: Apache-2.0
// InputSum: the Hessian X^T X of a matrix's inputs, added up over calibration rows X in the order
// that they are given. InputObserver: a backend that shows the inputs of single products.
#pragma once

#include "kernels/backend.h"
#include "kernels/forward_backend.h"
#include "kernels/view.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

class InputSum {
  public:
    // Sums on `backend`, which outlives this.
    InputSum(Backend& backend, int64_t k);

    // rows (m, k) in host memory, each times its weight (no weights: 1). A row with an infinity or
    // a NaN is left out.
    void add(View<const float> rows, std::span<const float> weights = {});

    int64_t k() const { return k_; }
    int64_t rows() const { return rows_; }  // that were added
    int64_t left_out() const { return left_out_; }
    // (k, k) over the sum of the weights; zeros without rows.
    std::vector<float> hessian() const;

  private:
    void add_chunk(View<const float> rows, std::span<const float> weights);

    Backend& backend_;
    int64_t k_;
    int64_t rows_ = 0;
    int64_t left_out_ = 0;
    double weight_ = 0;
    std::vector<double> sum_;        // (k, k)
    std::vector<float> transposed_;  // (k, rows of a chunk)
    std::vector<float> product_;     // (k, k)
};

class InputObserver final : public ForwardBackend {
  public:
    // in (m, k) in backend memory, of the product with the native weights at `weights`.
    using Watch = std::function<void(const void* weights, View<const float> in)>;

    InputObserver(Backend& inner, Watch watch) : ForwardBackend(inner), watch_(std::move(watch)) {}

    void linear(View<float> out, View<const float> in, const Matrix& weight) override;
    void linears(std::span<const Product> group) override;

  private:
    Watch watch_;
};

}  // namespace quadrille
