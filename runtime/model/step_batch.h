// SPDX-License-Identifier: Apache-2.0
// The rows of one pass as the ops read them: built on the host, uploaded at once.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

enum class Logits : uint8_t { none, last, all };

// A pass in backend memory.
struct PassInputs {
    Rows rows;
    const int32_t* tokens = nullptr;      // (m)
    const int32_t* logit_rows = nullptr;  // (logit_count) rows that want logits
    int32_t logit_count = 0;
};

class StepBatch {
  public:
    StepBatch(Backend& backend, int32_t max_rows, int32_t max_sequences);

    // commit: as Rows::commit (prefill).
    void clear(bool commit);
    // `tokens` of one sequence, the first at `position`; which of its rows want logits.
    void add(int32_t slot, int32_t position, int32_t pending, std::span<const int32_t> tokens,
             Logits logits);
    void upload();

    PassInputs inputs() const { return {rows(), tokens(), logit_rows(), logit_count()}; }
    Rows rows() const;                  // backend pointers, valid after upload()
    const int32_t* tokens() const;      // (m)
    const int32_t* logit_rows() const;  // (logit_count) rows that want logits
    int32_t logit_count() const { return static_cast<int32_t>(logit_rows_.size()); }
    int32_t m() const { return static_cast<int32_t>(tokens_.size()); }
    int32_t max_rows() const { return max_rows_; }

  private:
    enum Part : int64_t { kTokens, kRowSequence, kLogitRows, kSlot, kPosition, kPending, kBegin };
    const int32_t* part(Part which) const;

    int32_t max_rows_;
    int32_t max_sequences_;
    bool commit_ = false;
    std::vector<int32_t> tokens_, row_sequence_, logit_rows_;  // (m)
    std::vector<int32_t> slot_, position_, pending_, begin_;   // (sequences)
    std::vector<int32_t> staged_;
    Array<int32_t> device_;
};

}  // namespace quadrille
