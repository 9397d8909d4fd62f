// SPDX-License-Identifier: Apache-2.0
// TeacherForcing: given tokens through the target in prefill passes, every row of them observed:
// taps, final hidden rows, logits. What a row shows has the bits of Engine's prefill, however
// sequences are cut and whatever shares the pass. It uses the model's slots from position 0 on, so
// no record of an Engine may run meanwhile.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/position.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace quadrille {

// Neighbouring rows of one sequence, in backend memory until the observer returns.
struct ObservedRows {
    int64_t sequence = 0;      // its place among those of the run
    int32_t position = 0;      // of the first row
    View<const float> taps;    // (rows, taps * hidden)
    View<const float> hidden;  // (rows, hidden) after the final norm
    View<const float> logits;  // (rows, vocab part) of this rank; without logits no rows
};

struct TeacherForcingOptions {
    int32_t max_batched_tokens = 4096;  // rows of a pass; a multiple of kPrefillGrid
    bool logits = true;
    int64_t logit_bytes = int64_t{256} << 20;  // of logits that a rank holds at once, at most
};

class TeacherForcing {
  public:
    using Tokens = std::span<const int32_t>;
    using Observer = std::function<void(const ObservedRows&)>;

    // All outlive this.
    TeacherForcing(Backend& backend, Position& position, TargetModel& model,
                   const TeacherForcingOptions& options);

    // Shows every row of every sequence once, in order; a sequence is no longer than the model's
    // capacity. Collective. The calls are the same on every rank, so that an observer may use
    // collectives.
    void run(std::span<const Tokens> sequences, const Observer& observe);

  private:
    // A sequence's rows in a pass.
    struct Chunk {
        int64_t sequence = 0;
        int32_t position = 0;  // of the first row
        int64_t begin = 0;     // its row in the pass
        int64_t end = 0;
    };
    void run_pass(const Observer& observe);
    void show(int64_t begin, int64_t end, const Observer& observe);

    Backend& backend_;
    Position& position_;
    TargetModel& model_;
    TeacherForcingOptions options_;
    int64_t slice_;  // rows shown at once, the same on every rank
    StepBatch batch_;
    Array<float> hidden_, logits_;  // (slice, ...)
    std::vector<Chunk> chunks_;     // of the pass, by rows
    int64_t passes_ = 0;
};

}  // namespace quadrille
