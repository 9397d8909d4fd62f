// SPDX-License-Identifier: Apache-2.0
#include "runtime/teacher_forcing.h"

#include "kernels/error.h"
#include "runtime/model/shard.h"
#include "runtime/prefill_plan.h"

#include <algorithm>

namespace quadrille {

namespace {

// Rows whose logits fit on the rank with the largest part of the vocabulary.
int64_t slice_rows(const TargetModel& model, const TeacherForcingOptions& options) {
    if (!options.logits) return options.max_batched_tokens;
    const int64_t widest = block_share(model.config().vocab_size, model.plan().ranks, 0).size();
    const int64_t rows = options.logit_bytes / (widest * int64_t{sizeof(float)});
    return std::clamp<int64_t>(rows, 1, options.max_batched_tokens);
}

}  // namespace

TeacherForcing::TeacherForcing(Backend& backend, Position& position, TargetModel& model,
                               const TeacherForcingOptions& options)
    : backend_(backend),
      position_(position),
      model_(model),
      options_(options),
      slice_(slice_rows(model, options)),
      batch_(backend, options.max_batched_tokens, model.limits().slots),
      hidden_(backend, slice_, model.config().hidden_size),
      logits_(backend, options.logits ? slice_ : 0, model.plan().vocab.size()) {
    require(options.max_batched_tokens >= kPrefillGrid &&
                options.max_batched_tokens % kPrefillGrid == 0 &&
                options.max_batched_tokens <= model.limits().max_rows,
            "passes of whole grid cells inside the model's largest pass");
    chunks_.reserve(static_cast<size_t>(model.limits().slots));
}

void TeacherForcing::run(std::span<const Tokens> sequences, const Observer& observe) {
    for (const Tokens tokens : sequences) {
        require(std::ssize(tokens) <= model_.limits().capacity, "sequences within the capacity");
    }
    const int32_t slots = model_.limits().slots;
    size_t at = 0;      // the sequence that is read next
    int32_t begin = 0;  // its first token that is not read
    while (at < sequences.size()) {
        batch_.clear(true);
        chunks_.clear();
        while (at < sequences.size() && std::ssize(chunks_) < slots) {
            const Tokens left = sequences[at].subspan(static_cast<size_t>(begin));
            const int32_t rows = prefill_chunk(std::ssize(sequences[at]), begin,
                                               options_.max_batched_tokens - batch_.m());
            if (rows == 0 && !left.empty()) break;
            if (rows > 0) {
                const auto sequence = static_cast<int64_t>(at);
                chunks_.push_back({.sequence = sequence,
                                   .position = begin,
                                   .begin = batch_.m(),
                                   .end = batch_.m() + rows});
                // Sequences of a pass are neighbours, and no more than there are slots.
                batch_.add(static_cast<int32_t>(sequence % slots), begin, 0,
                           left.first(static_cast<size_t>(rows)), Logits::none);
            }
            begin += rows;
            if (rows < std::ssize(left)) continue;
            ++at;
            begin = 0;
        }
        if (!chunks_.empty()) run_pass(observe);
    }
}

void TeacherForcing::run_pass(const Observer& observe) {
    position_.enter(passes_++, "teacher forcing");
    batch_.upload();
    model_.forward(batch_);
    for (int64_t begin = 0; begin < batch_.m(); begin += slice_) {
        show(begin, std::min<int64_t>(begin + slice_, batch_.m()), observe);
    }
}

// Rows [begin, end) of the pass.
void TeacherForcing::show(int64_t begin, int64_t end, const Observer& observe) {
    const View<float> hidden = hidden_.first(end - begin);
    model_.final_hidden(hidden, begin);
    if (options_.logits) backend_.linear(logits_.first(hidden.rows), hidden, model_.head());
    for (const Chunk& chunk : chunks_) {
        const int64_t first = std::max(chunk.begin, begin);
        const int64_t rows = std::min(chunk.end, end) - first;
        if (rows <= 0) continue;
        ObservedRows shown{.sequence = chunk.sequence,
                           .position = chunk.position + static_cast<int32_t>(first - chunk.begin),
                           .taps = model_.taps().slice_rows(first, rows),
                           .hidden = hidden.slice_rows(first - begin, rows),
                           .logits = logits_.first(0)};
        if (options_.logits) shown.logits = logits_.view().slice_rows(first - begin, rows);
        observe(shown);
    }
}

}  // namespace quadrille
