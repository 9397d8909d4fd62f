// SPDX-License-Identifier: Apache-2.0
#include "runtime/scorer.h"

#include "runtime/prefill_plan.h"
#include "runtime/seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace quadrille {
namespace {

int32_t rows_of(const TargetModel& model) {
    return static_cast<int32_t>(prefill_floor(model.limits().max_rows));
}

Generation failed(const Prompt& prompt, const std::string& why) {
    Generation result = empty_generation(prompt, 0);
    result.prompt_tokens = prompt.options.score_from;
    result.status = Status::error;
    result.finish_reason = FinishReason::error;
    result.error = why;
    return result;
}

}  // namespace

Scorer::Scorer(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
               std::function<void(std::span<const RecordKey>)> on_running)
    : model_(model),
      on_running_(std::move(on_running)),
      forcing_(backend, position, model, {.max_batched_tokens = rows_of(model)}),
      scores_(backend, comm, model.plan().vocab, rows_of(model)) {}

void Scorer::submit(Prompt prompt) {
    const int64_t tokens = std::ssize(prompt.tokens);
    const int64_t from = prompt.options.score_from;
    std::string error = prompt.error;
    if (error.empty() && tokens > model_.limits().capacity) {
        error =
            fmt::format("{} tokens do not fit a context of {}", tokens, model_.limits().capacity);
    } else if (error.empty() && tokens < 2) {
        error = fmt::format(
            "expected two tokens or more, of which all but the first can be "
            "scored, found {}",
            tokens);
    } else if (error.empty() && (from < 1 || from >= tokens)) {
        error = fmt::format("score_from: expected 1 to {}, the last of its {} tokens, found {}",
                            tokens - 1, tokens, from);
    }
    if (error.empty()) {
        queue_.push_back(std::move(prompt));
    } else {
        finished_.push_back(failed(prompt, error));
    }
}

void Scorer::step() {
    if (queue_.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    int64_t rows = 0;
    std::vector<TeacherForcing::Tokens> sequences;
    std::vector<RecordKey> keys;
    std::vector<Generation> results;
    for (const Prompt& prompt : queue_) {
        const auto slots = static_cast<size_t>(model_.limits().slots);
        if (!sequences.empty() && (rows >= rows_of(model_) || sequences.size() >= slots)) break;
        rows += std::ssize(prompt.tokens);
        sequences.emplace_back(prompt.tokens);
        keys.push_back(key_of(prompt));
        results.push_back(empty_generation(prompt, 0));
        results.back().prompt_tokens = prompt.options.score_from;
    }
    if (on_running_) on_running_(keys);
    forcing_.run(sequences, [&](const ObservedRows& shown) {
        const auto at = static_cast<size_t>(shown.sequence);
        take(results[at], queue_[at], shown);
    });
    for (Generation& result : results) {
        end(result);
        stats_.emitted += std::ssize(result.tokens);
        finished_.push_back(std::move(result));
        queue_.pop_front();
    }
    if (on_running_) on_running_({});
    stats_.prefill_tokens += rows;
    stats_.prefill_seconds += seconds_since(start);
    ++stats_.steps;
}

// Row p of a sequence predicts token p + 1.
void Scorer::take(Generation& result, const Prompt& prompt, const ObservedRows& rows) {
    const int64_t first = std::max<int64_t>(rows.position, prompt.options.score_from - 1);
    const int64_t end =
        std::min<int64_t>(rows.position + rows.logits.rows, std::ssize(prompt.tokens) - 1);
    if (first >= end) return;
    const auto next =
        std::span(prompt.tokens)
            .subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(end - first));
    const int64_t best = std::max<int64_t>(prompt.options.logprobs, 0);
    const auto scores =
        scores_.score(rows.logits.slice_rows(first - rows.position, end - first), next, best);
    for (size_t i = 0; i < next.size(); ++i) {
        const RowScore& score = scores[i];
        if (std::isnan(score.logprob) && result.error.empty()) {
            result.error = fmt::format("no logit of token {} is a number",
                                       first + 1 + static_cast<int64_t>(i));
        }
        result.tokens.push_back(next[i]);
        result.chosen_logprobs.push_back(static_cast<float>(score.logprob));
        result.is_greedy = result.is_greedy && score.best == next[i];
        for (const Candidate& candidate : scores_.best(i)) {
            result.top_ids.push_back(candidate.id);
            result.top_logprobs.push_back(
                static_cast<float>(double{candidate.raw} - score.log_sum));
        }
    }
}

// Statistics as of a generation without drafts, so that files of both have the same identities.
void Scorer::end(Generation& result) {
    if (!result.error.empty()) {
        result.tokens.clear();
        result.chosen_logprobs.clear();
        result.top_ids.clear();
        result.top_logprobs.clear();
        result.is_greedy = false;
        result.status = Status::error;
        result.finish_reason = FinishReason::error;
        return;
    }
    const int64_t steps = std::ssize(result.tokens) - 1;
    result.acceptance.steps = result.acceptance.emitted = steps;
    result.acceptance.histogram = {steps};
}

}  // namespace quadrille
