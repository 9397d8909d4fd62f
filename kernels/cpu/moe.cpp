// SPDX-License-Identifier: Apache-2.0
// route and moe. A pass groups its (row, slot) pairs by expert, so that each expert's weights are
// decoded once for all its rows; results stay apart per pair and are summed in slot order, so that
// a row's bits do not depend on the grouping.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exponential.h"
#include "kernels/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace quadrille::cpu {

namespace {

// Rows of one grouping: bounds the scratch of a long prefill.
constexpr int64_t kMoeRows = 256;

void gather(float* out, View<const float> in, const int32_t* pairs, int64_t count, int64_t topk) {
    for (int64_t i = 0; i < count; ++i) {
        std::copy_n(in.row(pairs[i] / topk), in.cols, out + i * in.cols);
    }
}

}  // namespace

void CpuBackend::route(View<int32_t> ids, View<float> weights, View<const float> logits,
                       const float* bias, float scale, const Rows& rows) {
    contract::route(ids, weights, logits, bias, scale, rows);
    const int64_t topk = ids.cols;
    const int64_t count = logits.cols;
    float* score = scratch(kRouteScratch, 2 * count);
    float* biased = score + count;
    for (int64_t r = 0; r < logits.rows; ++r) {
        if (rows.m > 0 && rows.slot[rows.row_sequence[r]] < 0) {
            std::fill_n(ids.row(r), topk, -1);
            std::fill_n(weights.row(r), topk, 0.0f);
            continue;
        }
        for (int64_t e = 0; e < count; ++e) {
            score[e] = sigmoid(logits.row(r)[e]);
            biased[e] = score[e] + bias[e];
            // Never chosen before a number, but never chosen twice either.
            if (std::isnan(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();
        }
        int32_t* id = ids.row(r);
        float* weight = weights.row(r);
        float total = 0.0f;
        for (int64_t slot = 0; slot < topk; ++slot) {
            int64_t best = -1;
            for (int64_t e = 0; e < count; ++e) {
                if (std::isnan(biased[e])) continue;  // taken
                if (best < 0 || biased[e] > biased[best]) best = e;
            }
            biased[best] = std::numeric_limits<float>::quiet_NaN();
            id[slot] = static_cast<int32_t>(best);
            weight[slot] = score[best];
            total += score[best];
        }
        for (int64_t slot = 0; slot < topk; ++slot) {
            weight[slot] = weight[slot] / (total + 1e-20f) * scale;
        }
    }
}

// Pairs (row * topk + slot) of each expert, ascending: those of expert e are
// pairs[begin[e] .. begin[e + 1]).
void CpuBackend::group_pairs(View<const int32_t> ids, int32_t experts) {
    moe_begin_.assign(static_cast<size_t>(experts) + 1, 0);
    moe_pairs_.resize(static_cast<size_t>(ids.rows * ids.cols));
    for (int64_t r = 0; r < ids.rows; ++r) {
        for (int64_t slot = 0; slot < ids.cols; ++slot) {
            const int32_t e = ids.row(r)[slot];
            require(e >= -1 && e < experts, "moe: expert ids inside the table");
            if (e >= 0) ++moe_begin_[static_cast<size_t>(e) + 1];
        }
    }
    for (size_t e = 0; e < static_cast<size_t>(experts); ++e) moe_begin_[e + 1] += moe_begin_[e];
    for (int64_t r = 0; r < ids.rows; ++r) {
        for (int64_t slot = 0; slot < ids.cols; ++slot) {
            const int32_t e = ids.row(r)[slot];
            if (e < 0) continue;
            const int64_t at = moe_begin_[static_cast<size_t>(e)]++;
            moe_pairs_[static_cast<size_t>(at)] = static_cast<int32_t>(r * ids.cols + slot);
        }
    }
    // Filling moved every begin to its end: shift back.
    for (size_t e = static_cast<size_t>(experts); e > 0; --e) moe_begin_[e] = moe_begin_[e - 1];
    moe_begin_[0] = 0;
}

// out (m, width of the expert): swiglu(gate x, up x).
void CpuBackend::gated(View<float> out, View<const float> in, const Mlp& mlp, float limit) {
    float* up = scratch(kUpScratch, out.rows * out.cols);
    linear(out, in, mlp.gate);
    linear({up, out.rows, out.cols}, in, mlp.up);
    swiglu(out, out, View<const float>(up, out.rows, out.cols), limit);
}

// Rows of one grouping and where their activations lie.
struct CpuBackend::MoePass {
    View<const float> in{};
    View<const int32_t> ids{};
    View<const float> weights{};
    View<const float> shared_gate{};  // no rows: to be made
    View<const float> shared_up{};
    const MoeWeights& experts;
    bool shared = false;
    int32_t segments = 1;
    int64_t most = 0;         // rows of the busiest expert, the shared one included
    float* hidden = nullptr;  // activations of all pairs in group order, then the shared expert's

    float* hidden_of(int64_t pair) const { return hidden + pair * experts.max_width; }
    float* hidden_of_shared() const { return hidden_of(ids.rows * ids.cols); }
};

void CpuBackend::moe_hidden(const MoePass& pass) {
    float* rows = scratch(kGatherScratch, pass.most * pass.in.cols);
    for (int32_t e = 0; e < pass.experts.count; ++e) {
        const int64_t begin = moe_begin_[static_cast<size_t>(e)];
        const int64_t count = moe_begin_[static_cast<size_t>(e) + 1] - begin;
        if (count == 0) continue;
        const Mlp& mlp = pass.experts.experts[e];
        require(mlp.gate.n <= pass.experts.max_width && mlp.down.k == mlp.gate.n &&
                    mlp.down.segments == pass.segments && mlp.down.bias == nullptr,
                "moe: experts of one kind, no wider than max_width, down without bias");
        gather(rows, pass.in, moe_pairs_.data() + begin, count, pass.ids.cols);
        gated({pass.hidden_of(begin), count, mlp.gate.n},
              View<const float>(rows, count, pass.in.cols), mlp, pass.experts.limit);
    }
    if (!pass.shared) return;
    const Mlp& mlp = pass.experts.shared;
    require(mlp.gate.n <= pass.experts.max_width && mlp.down.bias == nullptr,
            "moe: shared expert no wider than max_width, down without bias");
    const View<float> out(pass.hidden_of_shared(), pass.in.rows, mlp.gate.n);
    if (pass.shared_gate.rows == 0) return gated(out, pass.in, mlp, pass.experts.limit);
    swiglu(out, pass.shared_gate, pass.shared_up, pass.experts.limit);
}

// sums (m, n): one segment of every expert, weighted and summed in slot order, + the shared one.
void CpuBackend::moe_segment(float* sums, const MoePass& pass, int32_t segment) {
    const int64_t m = pass.in.rows;
    const int64_t topk = pass.ids.cols;
    const int64_t n =
        pass.experts.count > 0 ? pass.experts.experts[0].down.n : pass.experts.shared.down.n;
    float* rows = scratch(kGatherScratch, pass.most * n);
    float* by_pair = scratch(kPairScratch, m * topk * n);
    for (int32_t e = 0; e < pass.experts.count; ++e) {
        const int64_t begin = moe_begin_[static_cast<size_t>(e)];
        const int64_t count = moe_begin_[static_cast<size_t>(e) + 1] - begin;
        if (count == 0) continue;
        const Matrix& down = pass.experts.experts[e].down;
        segment_product({rows, count, n}, View<const float>(pass.hidden_of(begin), count, down.k),
                        down, segment);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t pair = moe_pairs_[static_cast<size_t>(begin + i)];
            std::copy_n(rows + i * n, n, by_pair + pair * n);
        }
    }
    if (pass.shared) {
        const Matrix& down = pass.experts.shared.down;
        segment_product({rows, m, n}, View<const float>(pass.hidden_of_shared(), m, down.k), down,
                        segment);
    }
    for (int64_t r = 0; r < m; ++r) {
        float* sum = sums + r * n;
        std::fill_n(sum, n, 0.0f);
        for (int64_t slot = 0; slot < topk; ++slot) {
            if (pass.ids.row(r)[slot] < 0) continue;
            const float weight = pass.weights.row(r)[slot];
            const float* value = by_pair + (r * topk + slot) * n;
            for (int64_t c = 0; c < n; ++c) sum[c] += weight * value[c];
        }
        if (!pass.shared) continue;
        for (int64_t c = 0; c < n; ++c) sum[c] += rows[r * n + c];
    }
}

void CpuBackend::moe_rows(View<float> out, MoePass& pass) {
    const int64_t m = pass.in.rows;
    group_pairs(pass.ids, pass.experts.count);
    pass.most = m;
    for (size_t e = 0; e + 1 < moe_begin_.size(); ++e) {
        pass.most = std::max(pass.most, moe_begin_[e + 1] - moe_begin_[e]);
    }
    pass.hidden = scratch(kHiddenScratch, m * (pass.ids.cols + 1) * pass.experts.max_width);
    moe_hidden(pass);
    float* parts = scratch(kMoeScratch, pass.segments * m * out.cols);
    for (int32_t s = 0; s < pass.segments; ++s) moe_segment(parts + s * m * out.cols, pass, s);
    tree_sum(out, parts, pass.segments, m * out.cols);
}

void CpuBackend::moe(View<float> out, View<const float> in, View<const int32_t> ids,
                     View<const float> weights, const MoeWeights& experts,
                     View<const float> shared_gate, View<const float> shared_up) {
    contract::moe(out, in, ids, weights, experts, shared_gate, shared_up);
    MoePass pass{.experts = experts};
    pass.shared = experts.shared.down.n > 0;
    if (pass.shared) {
        pass.segments = experts.shared.down.segments;
    } else if (experts.count > 0) {
        pass.segments = experts.experts[0].down.segments;
    }
    for (int64_t first = 0; first < in.rows; first += kMoeRows) {
        const int64_t count = std::min(kMoeRows, in.rows - first);
        pass.in = in.slice_rows(first, count);
        pass.ids = ids.slice_rows(first, count);
        pass.weights = weights.slice_rows(first, count);
        if (shared_gate.rows > 0) {
            pass.shared_gate = shared_gate.slice_rows(first, count);
            pass.shared_up = shared_up.slice_rows(first, count);
        }
        moe_rows(out.slice_rows(first, count), pass);
    }
}

}  // namespace quadrille::cpu
