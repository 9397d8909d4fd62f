// SPDX-License-Identifier: Apache-2.0
// Choice among the columns of a row of logits. A NaN is never chosen; ties go to the lowest id.
#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille::cpu {

void CpuBackend::argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                        int32_t valid) {
    require(valid >= 0 && valid <= logits.cols, "argmax: valid columns inside the row");
    for (int64_t r = 0; r < logits.rows; ++r) {
        const float* x = logits.row(r);
        float best = -std::numeric_limits<float>::infinity();
        int32_t column = -1;
        for (int32_t c = 0; c < valid; ++c) {
            if (x[c] > best || (column < 0 && x[c] == best)) {
                best = x[c];
                column = c;
            }
        }
        value[r] = best;
        id[r] = column < 0 ? -1 : first_id + column;
    }
}

void CpuBackend::top_k(View<float> values, View<int32_t> ids, View<const float> logits,
                       int32_t first_id, int32_t valid) {
    require(valid >= 0 && valid <= logits.cols, "top_k: valid columns inside the row");
    require(values.rows == logits.rows && ids.rows == logits.rows && values.cols == ids.cols,
            "top_k: values and ids are (m, k)");
    const int64_t k = values.cols;
    for (int64_t r = 0; r < logits.rows && k > 0; ++r) {
        const float* x = logits.row(r);
        float* best = values.row(r);
        int32_t* id = ids.row(r);
        int64_t held = 0;
        for (int32_t c = 0; c < valid; ++c) {
            // Columns come in ascending order: an equal value stays behind those already held.
            if (std::isnan(x[c]) || (held == k && !(x[c] > best[k - 1]))) continue;
            const int64_t at = std::upper_bound(best, best + held, x[c], std::greater<>()) - best;
            held = std::min(held + 1, k);
            std::copy_backward(best + at, best + held - 1, best + held);
            std::copy_backward(id + at, id + held - 1, id + held);
            best[at] = x[c];
            id[at] = first_id + c;
        }
        std::fill(best + held, best + k, -std::numeric_limits<float>::infinity());
        std::fill(id + held, id + k, -1);
    }
}

}  // namespace quadrille::cpu
