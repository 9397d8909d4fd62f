// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/step_batch.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {

// Device layout: three parts of max_rows, three of max_sequences, one of max_sequences + 1.
StepBatch::StepBatch(Backend& backend, int32_t max_rows, int32_t max_sequences)
    : max_rows_(max_rows),
      max_sequences_(max_sequences),
      staged_(static_cast<size_t>(3 * max_rows + 4 * max_sequences + 1)),
      device_(backend, 1, 3 * int64_t{max_rows} + 4 * int64_t{max_sequences} + 1) {
    for (auto* rows : {&tokens_, &row_sequence_, &logit_rows_}) {
        rows->reserve(static_cast<size_t>(max_rows));
    }
    for (auto* sequences : {&slot_, &position_, &pending_, &begin_}) {
        sequences->reserve(static_cast<size_t>(max_sequences) + 1);
    }
    clear(false);
}

void StepBatch::clear(bool commit) {
    commit_ = commit;
    for (auto* values :
         {&tokens_, &row_sequence_, &logit_rows_, &slot_, &position_, &pending_, &begin_}) {
        values->clear();
    }
    begin_.push_back(0);
}

void StepBatch::add(int32_t slot, int32_t position, int32_t pending,
                    std::span<const int32_t> tokens, Logits logits) {
    require(
        std::ssize(tokens_) + std::ssize(tokens) <= max_rows_ && std::ssize(slot_) < max_sequences_,
        "a pass within the limits of its batch");
    const auto sequence = static_cast<int32_t>(slot_.size());
    for (const int32_t token : tokens) {
        if (logits == Logits::all) logit_rows_.push_back(m());
        tokens_.push_back(token);
        row_sequence_.push_back(sequence);
    }
    if (logits == Logits::last) logit_rows_.push_back(m() - 1);
    slot_.push_back(slot);
    position_.push_back(position);
    pending_.push_back(pending);
    begin_.push_back(m());
}

const int32_t* StepBatch::part(Part which) const {
    const int64_t rows = std::min<int64_t>(which, kSlot);
    const int64_t sequences = which - rows;
    return device_.data() + rows * max_rows_ + sequences * max_sequences_;
}

void StepBatch::upload() {
    const std::pair<Part, const std::vector<int32_t>*> parts[] = {
        {kTokens, &tokens_}, {kRowSequence, &row_sequence_}, {kLogitRows, &logit_rows_},
        {kSlot, &slot_},     {kPosition, &position_},        {kPending, &pending_},
        {kBegin, &begin_},
    };
    for (const auto& [which, values] : parts) {
        std::copy(values->begin(), values->end(), staged_.begin() + (part(which) - device_.data()));
    }
    device_.upload(staged_);
}

Rows StepBatch::rows() const {
    Rows rows;
    rows.m = m();
    rows.sequences = static_cast<int32_t>(slot_.size());
    rows.begin = part(kBegin);
    rows.slot = part(kSlot);
    rows.position = part(kPosition);
    rows.pending = part(kPending);
    rows.row_sequence = part(kRowSequence);
    rows.commit = commit_;
    return rows;
}

const int32_t* StepBatch::tokens() const {
    return part(kTokens);
}
const int32_t* StepBatch::logit_rows() const {
    return part(kLogitRows);
}

}  // namespace quadrille
