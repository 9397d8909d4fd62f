// SPDX-License-Identifier: Apache-2.0
#include "runtime/accept.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {

StepOutcome mark_accepted(std::span<const int32_t> drafts, std::span<const int32_t> target,
                          const EndRule& rule) {
    require(target.size() == drafts.size() + 1, "one target token for each verified row");
    require(rule.tokens_left > 0, "a running record has tokens left");
    size_t matched = 0;
    while (matched < drafts.size() && drafts[matched] >= 0 && drafts[matched] == target[matched]) {
        ++matched;
    }
    const auto limit = static_cast<int32_t>(
        std::min<int64_t>(static_cast<int64_t>(matched) + 1, rule.tokens_left));

    StepOutcome outcome;
    const auto contains = [](std::span<const int32_t> ids, int32_t token) {
        return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    while (outcome.emitted < limit && outcome.finish == FinishReason::none) {
        const int32_t token = target[static_cast<size_t>(outcome.emitted)];
        if (token < 0) {
            outcome.finish = FinishReason::error;
            break;
        }
        ++outcome.emitted;
        if (contains(rule.eos, token)) {
            outcome.finish = FinishReason::eos;
        } else if (contains(rule.stop, token)) {
            outcome.finish = FinishReason::stop;
        } else if (outcome.emitted == rule.tokens_left) {
            outcome.finish = rule.context_bound ? FinishReason::context : FinishReason::length;
        }
    }
    outcome.accepted = std::min(static_cast<int32_t>(matched), outcome.emitted);
    return outcome;
}

void end_at(StepOutcome& outcome, int32_t emitted, FinishReason finish) {
    require(emitted > 0 && emitted <= outcome.emitted, "an end inside what was emitted");
    outcome.emitted = emitted;
    outcome.accepted = std::min(outcome.accepted, emitted);
    outcome.finish = finish;
}

void count_step(Acceptance& acceptance, int32_t drafted, const StepOutcome& outcome) {
    ++acceptance.steps;
    acceptance.drafted += drafted;
    acceptance.accepted += outcome.accepted;
    acceptance.emitted += outcome.emitted;
    for (int32_t i = 0; i < outcome.accepted; ++i) {
        ++acceptance.by_position.at(static_cast<size_t>(i));
    }
    ++acceptance.histogram.at(static_cast<size_t>(outcome.accepted));
    acceptance.trace.push_back(static_cast<uint8_t>(outcome.accepted));
}

}  // namespace quadrille
