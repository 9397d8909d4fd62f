// SPDX-License-Identifier: Apache-2.0
// One row of logits that a token is drawn from: what the sampling ops read (backend memory), and
// the arithmetic of one logit, shared by all backends and by the host.
#pragma once

#include "kernels/exp_sum.h"
#include "kernels/host_device.h"
#include "kernels/noise.h"
#include "kernels/philox.h"

#include <cmath>
#include <cstdint>

namespace quadrille {

struct SampleRow {
    uint64_t seed = 0;
    int64_t position = 0;              // absolute, of the token that is drawn
    double inverse_temperature = 0.0;  // 0: greedy, no noise
    // Repetition penalty: the ids whose bit is set in `seen` (32 ids a word, the lowest bit first)
    // and drafts[0, draft_count). penalty 1: neither is read. Backend memory.
    const uint32_t* seen = nullptr;
    const int32_t* drafts = nullptr;
    int32_t draft_count = 0;
    float penalty = 1.0f;
    int32_t row = 0;  // of the logits
    Stream stream = Stream::token;
    // Only ids before this place take part: a larger logit (penalized), or the same and a lower id.
    // As it stands: all.
    float end = -INFINITY;
    int32_t end_id = INT32_MAX;
    // Read by sample_filtered alone.
    int32_t top_k = 0;   // 0: off
    double top_p = 1.0;  // 1: off
    double min_p = 0.0;  // 0: off
};

QUADRILLE_HOST_DEVICE constexpr bool is_penalized(const SampleRow& row, int32_t id) {
    const auto bit = static_cast<uint32_t>(id);
    if ((row.seen[bit / 32] >> (bit % 32) & 1u) != 0) return true;
    for (int32_t i = 0; i < row.draft_count; ++i) {
        if (row.drafts[i] == id) return true;
    }
    return false;
}

// The logit of a token of the history.
QUADRILLE_HOST_DEVICE constexpr float penalize(float logit, float penalty) {
    return logit > 0.0f ? logit / penalty : logit * penalty;
}

// The logit of `id` in this row: `logit`, or penalized; NaN where the id takes no part.
QUADRILLE_HOST_DEVICE constexpr float logit_of(const SampleRow& row, float logit, int32_t id) {
    if (row.penalty != 1.0f && is_penalized(row, id)) logit = penalize(logit, row.penalty);
    return logit > row.end || (logit == row.end && id < row.end_id) ? logit : NAN;
}

// Exponent (base 2) of the weight of a logit in the row's distribution.
QUADRILLE_HOST_DEVICE constexpr ExpTerm weight_of(double logit, double inverse_temperature) {
    return exp2_term(ieee::mul(ieee::mul(logit, inverse_temperature), kLog2E));
}

// True: a draw that not every id takes part in.
QUADRILLE_HOST_DEVICE constexpr bool is_filtered(const SampleRow& row) {
    return row.inverse_temperature != 0.0 && (row.top_k > 0 || row.top_p < 1.0 || row.min_p > 0.0);
}

// True: top-p is over; the ids that `sum` is of reach `share` of all.
QUADRILLE_HOST_DEVICE inline bool reaches(const ExpSum& sum, double share, const ExpSum& total) {
    return sum.over(total.top) >= ieee::mul(share, total.over(total.top));
}

// True: min-p keeps a logit of this weight; it is at least `share` of the largest, `best`.
QUADRILLE_HOST_DEVICE inline bool weighs(float logit, double share, float best,
                                         double inverse_temperature) {
    const ExpTerm first = weight_of(static_cast<double>(best), inverse_temperature);
    const ExpTerm term = weight_of(static_cast<double>(logit), inverse_temperature);
    int64_t shift = term.exponent - first.exponent;
    if (shift < -2000) shift = -2000;
    return ldexp(static_cast<double>(term.mantissa), static_cast<int>(shift)) >=
           ieee::mul(share, static_cast<double>(first.mantissa));
}

// What the draw maximizes, before its noise.
QUADRILLE_HOST_DEVICE constexpr double scaled(double logit, double inverse_temperature) {
    return ieee::mul(logit, inverse_temperature);
}

}  // namespace quadrille
