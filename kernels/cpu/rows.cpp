// SPDX-License-Identifier: Apache-2.0
// Ops that work row by row without a product: embedding, norms, the gate of an MLP, sums and
// copies.
#include "kernels/contract.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/lanes.h"
#include "kernels/error.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace quadrille::cpu {

void CpuBackend::embed(View<float> out, const int32_t* tokens, const Matrix& table,
                       int32_t copies) {
    contract::embed(out, tokens, table, copies);
    for (int64_t r = 0; r < out.rows; ++r) {
        const int32_t token = tokens[r];
        require(token >= -1 && token < table.n, "embed: token inside the table");
        float* to = out.row(r);
        if (token < 0) {
            std::fill_n(to, out.cols, 0.0f);
            continue;
        }
        convert_row(to, table, token);
        for (int32_t copy = 1; copy < copies; ++copy) {
            std::copy_n(to, table.k, to + copy * table.k);
        }
    }
}

void CpuBackend::rms_norm(View<float> out, View<const float> in, const float* weight, float eps) {
    contract::rms_norm(out, in, weight, eps);
    const auto count = static_cast<float>(in.cols);
    for (int64_t r = 0; r < in.rows; ++r) {
        const float* x = in.row(r);
        float* y = out.row(r);
        const float scale = 1.0f / std::sqrt(sum_of_squares(x, in.cols) / count + eps);
        for (int64_t c = 0; c < in.cols; ++c) y[c] = weight[c] * (x[c] * scale);
    }
}

void CpuBackend::layer_norm(View<float> out, View<const float> in, const float* weight,
                            const float* bias, float eps) {
    contract::layer_norm(out, in, weight, bias, eps);
    const auto count = static_cast<float>(in.cols);
    for (int64_t r = 0; r < in.rows; ++r) {
        const float* x = in.row(r);
        float* y = out.row(r);
        const float mean = sum(x, in.cols) / count;
        const float scale = 1.0f / std::sqrt(sum_of_squares(x, in.cols, mean) / count + eps);
        for (int64_t c = 0; c < in.cols; ++c) y[c] = (x[c] - mean) * scale * weight[c] + bias[c];
    }
}

void CpuBackend::swiglu(View<float> out, View<const float> gate, View<const float> up,
                        float limit) {
    contract::swiglu(out, gate, up, limit);
    const float bound = limit == 0.0f ? INFINITY : limit;
    for (int64_t r = 0; r < out.rows; ++r) {
        sequence_->swiglu(out.row(r), gate.row(r), up.row(r), bound, out.cols);
    }
}

void CpuBackend::add(View<float> out, View<const float> in) {
    contract::add(out, in);
    for (int64_t r = 0; r < out.rows; ++r) {
        const float* x = in.row(r);
        float* y = out.row(r);
        for (int64_t c = 0; c < out.cols; ++c) y[c] += x[c];
    }
}

void CpuBackend::tree_sum(View<float> out, const float* parts, int32_t count, int64_t part_stride) {
    contract::tree_sum(out, parts, count, part_stride);
    for (int64_t r = 0; r < out.rows; ++r) {
        const float* p = parts + r * out.cols;
        float* y = out.row(r);
        if (count == 1) {
            std::copy_n(p, out.cols, y);
        } else if (count == 2) {
            for (int64_t c = 0; c < out.cols; ++c) y[c] = p[c] + p[c + part_stride];
        } else {
            for (int64_t c = 0; c < out.cols; ++c) {
                y[c] =
                    (p[c] + p[c + part_stride]) + (p[c + 2 * part_stride] + p[c + 3 * part_stride]);
            }
        }
    }
}

void CpuBackend::copy_rows(View<float> out, View<const float> in, const int32_t* index) {
    contract::copy_rows(out, in, index);
    for (int64_t r = 0; r < out.rows; ++r) {
        require(index[r] >= -1 && index[r] < in.rows, "copy_rows: index inside the source");
        if (index[r] < 0) continue;
        std::memmove(out.row(r), in.row(index[r]), static_cast<size_t>(out.cols) * sizeof(float));
    }
}

}  // namespace quadrille::cpu
