// SPDX-License-Identifier: Apache-2.0
// Sums of what engines count.
#include "runtime/engine.h"

namespace quadrille {

EngineStats& EngineStats::operator+=(const EngineStats& other) {
    steps += other.steps;
    prefill_tokens += other.prefill_tokens;
    decode_steps += other.decode_steps;
    decode_records += other.decode_records;
    emitted += other.emitted;
    first_tokens += other.first_tokens;
    prefill_seconds += other.prefill_seconds;
    decode_seconds += other.decode_seconds;
    draft_seconds += other.draft_seconds;
    verify_seconds += other.verify_seconds;
    accept_seconds += other.accept_seconds;
    context_seconds += other.context_seconds;
    recorded_steps += other.recorded_steps;
    gaps += other.gaps;
    gap_seconds += other.gap_seconds;
    return *this;
}

}  // namespace quadrille
