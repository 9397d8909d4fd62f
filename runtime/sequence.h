// SPDX-License-Identifier: Apache-2.0
// One record that the engine runs: its prompt, what it has emitted, how far its caches are, and
// what it may still emit. It knows no other record and no pass.
#pragma once

#include "io/records.h"
#include "io/text/tokenizer.h"
#include "runtime/accept.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/stop_text.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// What ends the records of an engine, next to their own options.
struct EndLimits {
    std::span<const int32_t> eos;
    int64_t capacity = 0;  // tokens of a slot
    // Stop strings need it; nullptr where no record has them.
    const Tokenizer* tokenizer = nullptr;
};

// The result of `prompt` before its first step: its key, no tokens, counts of up to k drafts a
// step.
Generation empty_generation(const Prompt& prompt, int32_t k);

struct Sequence {
    // `run_seed`: for records without a seed of their own.
    Sequence(Prompt record, int32_t slot_of_record, int32_t k, uint64_t run_seed);

    Prompt prompt;
    Generation result;
    int32_t slot = 0;
    int32_t position = 0;  // tokens in the caches, pending rows included
    int32_t pending = 0;   // rows of the last step that the KDA state lacks
    uint64_t seed = 0;
    StopText stop_text;
    std::chrono::steady_clock::time_point admitted = std::chrono::steady_clock::now();

    int64_t prompt_size() const { return std::ssize(prompt.tokens); }
    bool prefilling() const { return position < prompt_size(); }
    // Behind the prompt, tokens that an earlier start kept are still to enter the caches.
    bool replaying() const { return !prefilling() && replay_left() > 0; }
    int64_t replay_left() const { return prompt_size() + std::ssize(result.tokens) - 1 - position; }
    bool penalized() const { return prompt.options.repetition_penalty != 1.0; }
    int32_t anchor() const { return result.tokens.back(); }

    // Takes up what an earlier start kept of the record, before its first pass.
    void take_up_kept(const Tokenizer* tokenizer);

    EndRule end_rule(const EndLimits& limits) const;
    // The drafts of a step that may have up to k.
    int32_t drafts_to_verify(int32_t k, const EndLimits& limits) const;
    // A draw of the token `ahead` positions behind the cached ones.
    DrawRequest draw_request(int32_t ahead) const;
    // What a step emits, given the drafts that were verified and the target's tokens; for stop
    // strings it counts as emitted.
    StepOutcome outcome(std::span<const int32_t> drafts, std::span<const int32_t> target,
                        const EndLimits& limits);
    // Appends what a step emits. Returns the new tokens. FinishReason::error: the result says at
    // which token, counted from 0, and at which position, that of the prompt's first token being 0.
    std::span<const int32_t> emit(std::span<const Choice> target, const StepOutcome& outcome);

  private:
    void find_stop_text(StepOutcome& outcome, std::span<const int32_t> target,
                        const Tokenizer& tokenizer);
};

}  // namespace quadrille
