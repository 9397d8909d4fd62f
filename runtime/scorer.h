// SPDX-License-Identifier: Apache-2.0
// Scorer: the log-probabilities of tokens that records already have, from RecordOptions::score_from
// on, each given those before it; teacher-forced, so that a record's figures have the same bits
// whatever runs beside it, for any ranks. A result's tokens are those that were scored.
#pragma once

#include "runtime/engine.h"
#include "runtime/record_runner.h"
#include "runtime/sampling/row_scores.h"
#include "runtime/teacher_forcing.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace quadrille {

class Scorer final : public RecordRunner {
  public:
    // All outlive it. `on_running` as EngineOptions has it.
    Scorer(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
           std::function<void(std::span<const RecordKey> running)> on_running);

    // A record that cannot be scored is finished with an error: `score_from` is no place between
    // its first and its last token, or it fills the context.
    void submit(Prompt prompt) override;
    bool idle() const override { return queue_.empty(); }
    int64_t in_flight() const override { return std::ssize(queue_); }
    void drop_queued() override { queue_.clear(); }
    // Reads records that are submitted, as many as fill a pass.
    void step() override;
    std::vector<Generation> take_finished() override { return std::exchange(finished_, {}); }
    std::vector<Generation> unfinished() const override { return {}; }
    const EngineStats& stats() const override { return stats_; }

  private:
    void take(Generation& result, const Prompt& prompt, const ObservedRows& rows);
    static void end(Generation& result);

    TargetModel& model_;
    std::function<void(std::span<const RecordKey>)> on_running_;
    TeacherForcing forcing_;
    RowScores scores_;
    std::deque<Prompt> queue_;
    std::vector<Generation> finished_;
    EngineStats stats_;
};

}  // namespace quadrille
