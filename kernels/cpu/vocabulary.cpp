// SPDX-License-Identifier: Apache-2.0
// Choice among the columns of a row of logits. A NaN is never chosen; ties go to the lowest id.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille::cpu {

namespace {

// The best k of what was offered: values descending, equal ones by ascending id.
struct Best {
    float* values;
    int32_t* ids;
    int64_t k;
    int64_t held = 0;

    bool before(float value, int32_t id, int64_t at) const {
        return value > values[at] || (value == values[at] && id < ids[at]);
    }
    void offer(float value, int32_t id) {
        if (std::isnan(value) || k == 0 || (held == k && !before(value, id, k - 1))) return;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && before(value, id, at - 1); --at) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = value;
        ids[at] = id;
    }
    void pad() const {
        std::fill(values + held, values + k, -std::numeric_limits<float>::infinity());
        std::fill(ids + held, ids + k, -1);
    }
};

}  // namespace

void CpuBackend::argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                        int32_t valid) {
    contract::argmax(value, id, logits, first_id, valid);
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
    contract::top_k(values, ids, logits, first_id, valid);
    for (int64_t r = 0; r < logits.rows; ++r) {
        const float* x = logits.row(r);
        Best best{values.row(r), ids.row(r), values.cols};
        for (int32_t c = 0; c < valid; ++c) best.offer(x[c], first_id + c);
        best.pad();
    }
}

void CpuBackend::merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                             const int32_t* part_ids, int32_t count, int64_t part_stride) {
    contract::merge_top_k(values, ids, part_values, part_ids, count, part_stride);
    const int64_t k = values.cols;
    for (int64_t r = 0; r < values.rows; ++r) {
        Best best{values.row(r), ids.row(r), k};
        for (int32_t part = 0; part < count; ++part) {
            const int64_t first = part * part_stride + r * k;
            for (int64_t i = first; i < first + k; ++i) {
                if (part_ids[i] >= 0) best.offer(part_values[i], part_ids[i]);
            }
        }
        best.pad();
    }
}

}  // namespace quadrille::cpu
