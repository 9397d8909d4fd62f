// SPDX-License-Identifier: Apache-2.0
// One row of logits that a token is drawn from: what the sampling ops read (backend memory), and
// the arithmetic of one logit, shared by all backends and by the host.
#pragma once

#include "kernels/exp_sum.h"
#include "kernels/host_device.h"
#include "kernels/noise.h"
#include "kernels/philox.h"

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

// The logit of `id` in this row: `logit`, or penalized.
QUADRILLE_HOST_DEVICE constexpr float logit_of(const SampleRow& row, float logit, int32_t id) {
    if (row.penalty == 1.0f || !is_penalized(row, id)) return logit;
    return penalize(logit, row.penalty);
}

// Exponent (base 2) of the weight of a logit in the row's distribution.
QUADRILLE_HOST_DEVICE constexpr ExpTerm weight_of(double logit, double inverse_temperature) {
    return exp2_term(ieee::mul(ieee::mul(logit, inverse_temperature), kLog2E));
}

// What the draw maximizes, before its noise.
QUADRILLE_HOST_DEVICE constexpr double scaled(double logit, double inverse_temperature) {
    return ieee::mul(logit, inverse_temperature);
}

}  // namespace quadrille
