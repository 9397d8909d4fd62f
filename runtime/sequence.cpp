// SPDX-License-Identifier: Apache-2.0
#include "runtime/sequence.h"

#include "runtime/seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quadrille {

Generation empty_generation(const Prompt& prompt, int32_t k) {
    Generation result;
    result.prompt_index = prompt.index;
    result.source = prompt.source;
    result.sample = prompt.sample;
    result.prompt_tokens = std::ssize(prompt.tokens);
    result.acceptance.by_position.resize(static_cast<size_t>(k));
    result.acceptance.histogram.resize(static_cast<size_t>(k) + 1);
    return result;
}

Sequence::Sequence(Prompt record, int32_t slot_of_record, int32_t k, uint64_t run_seed)
    : prompt(std::move(record)), result(empty_generation(prompt, k)), slot(slot_of_record) {
    const int64_t own_seed = prompt.options.seed;
    seed = own_seed >= 0 ? static_cast<uint64_t>(own_seed)
                         : record_seed(run_seed, prompt.index, prompt.source, prompt.sample);
}

void Sequence::take_up_kept(const Tokenizer* tokenizer) {
    Generation& kept = prompt.kept;
    result.tokens = std::move(kept.tokens);
    result.chosen_logprobs = std::move(kept.chosen_logprobs);
    result.top_ids = std::move(kept.top_ids);
    result.top_logprobs = std::move(kept.top_logprobs);
    result.acceptance = std::move(kept.acceptance);
    if (prompt.options.stop_text.empty()) return;
    for (const int32_t token : result.tokens) {
        if (tokenizer->is_special(token)) continue;
        stop_text.add(tokenizer->token_bytes(token), prompt.options.stop_text);
    }
}

EndRule Sequence::end_rule(const EndLimits& limits) const {
    const RecordOptions& options = prompt.options;
    const int64_t done = std::ssize(result.tokens);
    const int64_t by_length = options.max_new_tokens - done;
    const int64_t by_context = limits.capacity - prompt_size() - done;
    return {.eos = options.ignore_eos ? std::span<const int32_t>{} : limits.eos,
            .stop = options.stop_tokens,
            .tokens_left = std::min(by_length, by_context),
            .context_bound = by_context < by_length};
}

int32_t Sequence::drafts_to_verify(int32_t k, const EndLimits& limits) const {
    return static_cast<int32_t>(std::min<int64_t>(k, end_rule(limits).tokens_left));
}

DrawRequest Sequence::draw_request(int32_t ahead) const {
    return {.options = &prompt.options,
            .seed = seed,
            .position = int64_t{position} + ahead,
            .slot = slot};
}

StepOutcome Sequence::outcome(std::span<const int32_t> drafts, std::span<const int32_t> target,
                              const EndLimits& limits) {
    StepOutcome outcome = mark_accepted(drafts, target, end_rule(limits));
    if (!prompt.options.stop_text.empty()) find_stop_text(outcome, target, *limits.tokenizer);
    return outcome;
}

// An end or stop token is no text; a stop string wins over the limit that its last token reaches.
void Sequence::find_stop_text(StepOutcome& outcome, std::span<const int32_t> target,
                              const Tokenizer& tokenizer) {
    const bool ended = outcome.finish == FinishReason::eos || outcome.finish == FinishReason::stop;
    const int32_t count = outcome.emitted - (ended ? 1 : 0);
    for (int32_t i = 0; i < count; ++i) {
        const int32_t token = target[static_cast<size_t>(i)];
        if (tokenizer.is_special(token)) continue;
        const int64_t begin = stop_text.add(tokenizer.token_bytes(token), prompt.options.stop_text);
        if (begin == StopText::kNone) continue;
        result.text_end = begin;
        end_at(outcome, i + 1, FinishReason::stop);
        return;
    }
}

std::span<const int32_t> Sequence::emit(std::span<const Choice> target,
                                        const StepOutcome& outcome) {
    const bool with_logprobs = prompt.options.logprobs >= 0;
    const size_t before = result.tokens.size();
    for (const Choice& choice : target.first(static_cast<size_t>(outcome.emitted))) {
        result.tokens.push_back(choice.token);
        if (!with_logprobs) continue;
        result.chosen_logprobs.push_back(choice.logprob);
        result.top_ids.insert(result.top_ids.end(), choice.top_ids.begin(), choice.top_ids.end());
        result.top_logprobs.insert(result.top_logprobs.end(), choice.top_logprobs.begin(),
                                   choice.top_logprobs.end());
    }
    if (result.first_seconds == 0) result.first_seconds = seconds_since(admitted);
    result.finish_reason = outcome.finish;
    if (outcome.finish != FinishReason::none) result.seconds = seconds_since(admitted);
    if (outcome.finish == FinishReason::error) {
        result.status = Status::error;
        result.error = fmt::format("token {} (position {}): no logit of the model is a number",
                                   result.tokens.size(), prompt_size() + std::ssize(result.tokens));
    }
    return std::span(result.tokens).subspan(before);
}

}  // namespace quadrille
