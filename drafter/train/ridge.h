// SPDX-License-Identifier: Apache-2.0
// Ridge: a linear map fitted to rows by least squares with a penalty, on host memory. Each input is
// scaled by its root mean square first, so that the penalty means the same for all of them:
//   W = argmin sum |y - W x|^2 + damping * rows * sum_i ms(x_i) |W column i|^2
#pragma once

#include "kernels/view.h"

#include <cstdint>
#include <vector>

namespace quadrille {

class Ridge {
  public:
    // Takes 8 bytes * inputs * (inputs + outputs). No result depends on `threads`.
    Ridge(int64_t inputs, int64_t outputs, int32_t threads);

    // Rows x (m, inputs) and y (m, outputs). Sums of 1024 rows are fp32, those of the sums fp64.
    void add(View<const float> x, View<const float> y);
    int64_t rows() const { return rows_; }
    // W (outputs, inputs), fp32; the sums are lost. damping > 0. An input that is always 0 gets
    // weights of 0. Error{input}: no rows, or sums that are not finite.
    std::vector<float> solve(double damping);

  private:
    void scale_inputs();
    void solve_columns(int64_t first, int64_t count, std::vector<float>& map) const;

    int64_t inputs_, padded_, outputs_;  // padded_: a multiple of 64
    int32_t threads_;
    int64_t rows_ = 0;
    std::vector<double> squares_;   // (padded_, padded_), the lower triangle: X^T X
    std::vector<double> products_;  // (inputs_, outputs_): X^T Y
    std::vector<double> scale_;     // (inputs_), 1 / sqrt of the diagonal, 0 where that is 0
};

}  // namespace quadrille
