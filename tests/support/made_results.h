// SPDX-License-Identifier: Apache-2.0
// Generations with consistent statistics.
#pragma once

#include "io/records.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace quadrille::test {

// Steps accept 0, 1, … K drafts in turn until `tokens` tokens are there.
inline Generation make_generation(int64_t index, int64_t tokens, int64_t k) {
    Generation g;
    g.prompt_index = index;
    g.prompt_tokens = 5 + index;
    for (int64_t i = 0; i < tokens; ++i)
        g.tokens.push_back(static_cast<int32_t>((index * 31 + i) % 1000));
    g.finish_reason = tokens % 2 == 0 ? FinishReason::eos : FinishReason::length;
    g.text = "text " + std::to_string(index);
    Acceptance& a = g.acceptance;
    a.by_position.assign(static_cast<size_t>(k), 0);
    a.histogram.assign(static_cast<size_t>(k) + 1, 0);
    for (int64_t left = tokens - 1, turn = 0; left > 0; ++turn) {
        const int64_t accepted = std::min({turn % (k + 1), left, k});
        const int64_t emitted = std::min(accepted + 1, left);
        ++a.steps;
        a.drafted += std::min(k, left);
        a.accepted += accepted;
        a.emitted += emitted;
        ++a.histogram[static_cast<size_t>(accepted)];
        for (int64_t i = 0; i < accepted; ++i) ++a.by_position[static_cast<size_t>(i)];
        a.trace.push_back(static_cast<uint8_t>(accepted));
        left -= emitted;
    }
    return g;
}

// A record that was never run.
inline Generation make_failure(int64_t index, const std::string& error) {
    Generation g;
    g.prompt_index = index;
    g.status = Status::error;
    g.finish_reason = FinishReason::error;
    g.error = error;
    return g;
}

}  // namespace quadrille::test
