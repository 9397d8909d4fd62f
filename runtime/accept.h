// SPDX-License-Identifier: Apache-2.0
// The accept rule of one verify step and the end of a record: pure functions (docs/design.md §5,
// "End of a record").
#pragma once

#include "io/records.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// How a sampled draft is accepted (docs/design.md §6). coupled: it equals the target's own draw,
// and the output does not depend on the drafts. rejection: the standard rule, the same
// distribution.
enum class AcceptRule : uint8_t { coupled, rejection };

struct EndRule {
    std::span<const int32_t> eos;   // empty where the record ignores them
    std::span<const int32_t> stop;  // the record's own stop tokens
    int64_t tokens_left = 0;        // r: until the record's length or the context is full
    bool context_bound = false;     // tokens_left is the context's, not the record's limit
};

struct StepOutcome {
    int32_t accepted = 0;  // drafts that were emitted
    int32_t emitted = 0;   // tokens emitted: target[0, emitted)
    FinishReason finish = FinishReason::none;
};

// drafts d_1..d_k against the target's own tokens x_0..x_k (x_i follows row i; row 0 is the
// anchor): drafts are accepted while d_i == x_{i-1}; the token after the last accepted one is the
// target's. Emission ends at an end token, a stop token or the limit; drafts behind it count as not
// accepted. A draft of -1 (none) is never accepted. Emission ends with FinishReason::error before a
// target of -1, which the model has no number for: it matters only where it would be emitted.
StepOutcome mark_accepted(std::span<const int32_t> drafts, std::span<const int32_t> target,
                          const EndRule& rule);

// Ends emission after `emitted` tokens, fewer than or as many as before: a stop string ends there.
void end_at(StepOutcome& outcome, int32_t emitted, FinishReason finish);

// Adds one verify step to a record's statistics; `drafted` drafts were verified.
void count_step(Acceptance& acceptance, int32_t drafted, const StepOutcome& outcome);

}  // namespace quadrille
