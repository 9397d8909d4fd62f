// SPDX-License-Identifier: Apache-2.0
// Engine: continuous batching over slots. A step is one pass: prefill (chunks of one or several
// records) while any admitted record is still being read, else replay (tokens that an earlier start
// kept), else decode (all running records: draft, verify, accept, commit). All ranks run the same
// engine on the same numbers; what a record emits never depends on the others, their order or K
// (docs/design.md §4, §6).
#pragma once

#include "io/records.h"
#include "io/text/tokenizer.h"
#include "runtime/accept.h"
#include "runtime/device_step.h"
#include "runtime/drafter.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/target_model.h"
#include "runtime/prefill_plan.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"
#include "runtime/record_runner.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/token_history.h"
#include "runtime/sequence.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// How a decode step reaches the backend. in_parts: the host reads drafts and choices between its
// parts. whole: as one sequence of work (runtime/device_step.h). recorded: the same, recorded and
// replayed where backend and communicator can, else in_parts. A step with a record that needs the
// host between (filters, penalties, log probabilities, rejection) is always taken in parts. The
// results are the same.
enum class StepWay : uint8_t { in_parts, whole, recorded };

struct EngineOptions {
    int32_t max_batched_tokens = 4096;  // rows of a prefill pass; a multiple of kPrefillGrid
    int32_t k = 0;                      // drafts verified per step at most
    int64_t known_tokens = 0;           // ids from here on are never chosen
    std::vector<int32_t> eos{};
    uint64_t seed = 0;  // of the run, for records without a seed of their own
    AcceptRule accept = AcceptRule::coupled;
    const Tokenizer* tokenizer = nullptr;  // for stop strings; nullptr: they are record errors
    StepWay steps = StepWay::recorded;
    // Told which records run, whenever these are others. {}: nobody asks.
    std::function<void(std::span<const Sequence> running)> on_running = {};
};

struct EngineStats {
    int64_t steps = 0;  // passes
    int64_t prefill_tokens = 0;
    int64_t decode_steps = 0;    // decode passes
    int64_t decode_records = 0;  // records of all decode passes
    int64_t emitted = 0;         // tokens of all records
    int64_t first_tokens = 0;    // of those, tokens that prefill passes gave
    double prefill_seconds = 0;
    double decode_seconds = 0;
    // Parts of decode_seconds. Where a backend runs behind the host, time shows where the host
    // waits for it: mostly in accept. A step that is not taken in parts counts under verify.
    double draft_seconds = 0;    // the drafter's blocks
    double verify_seconds = 0;   // the target's forward
    double accept_seconds = 0;   // choice of tokens, acceptance
    double context_seconds = 0;  // rows appended to the drafter's context
    int64_t recorded_steps = 0;  // decode steps replayed from a recording
    // Between recorded steps that follow each other: from the results of one to the start of the
    // next, while the backend has nothing to do.
    int64_t gaps = 0;
    double gap_seconds = 0;

    int64_t decoded() const { return emitted - first_tokens; }
    EngineStats& operator+=(const EngineStats& other);
};

class Engine final : public RecordRunner {
  public:
    // `drafter` may be nullptr (K = 0).
    Engine(Backend& backend, Communicator& comm, Position& position, TargetModel& model,
           Drafter* drafter, const EngineOptions& options);

    void submit(Prompt prompt) override;
    bool idle() const override { return queue_.empty() && running_.empty(); }
    int64_t in_flight() const override { return std::ssize(queue_) + std::ssize(running_); }
    int64_t queued() const { return std::ssize(queue_); }
    void drop_queued() override { queue_.clear(); }
    void step() override;
    std::vector<Generation> take_finished() override;
    std::vector<Generation> unfinished() const override;

    void set_k(int32_t k);  // from the next step on; at most EngineOptions::k
    const EngineStats& stats() const override { return stats_; }
    // Counts from zero again.
    void clear_stats();

  private:
    void admit();
    void prefill();
    void replay();
    void decode();
    void decode_in_parts(int32_t k);
    void decode_whole(int32_t k);
    bool takes_whole_step() const;
    // Ends a decode step: the target's choices of the verified rows against drafts_. write_: the
    // rows that stay.
    void finish_decode(int32_t k, std::span<const Choice> choices);
    void draft(int32_t k);
    std::span<const int32_t> verified_drafts(size_t running, int32_t k) const;
    EndLimits end_limits() const;
    // What `sequence` emits of the target's choices behind the drafts that were verified.
    StepOutcome advance(Sequence& sequence, std::span<const int32_t> drafts,
                        std::span<const Choice> target);
    void retire();
    void reject(const Prompt& prompt, const std::string& why);
    void add_to_hash(std::span<const int32_t> tokens);
    void compare_ranks();

    Backend& backend_;
    Communicator& comm_;
    Position& position_;
    TargetModel& model_;
    Drafter* drafter_;
    EngineOptions options_;
    int32_t k_;
    Sampler sampler_;
    TokenHistory history_;
    StepBatch batch_;
    std::optional<DeviceStep> device_step_;
    std::vector<StepRecord> step_records_;
    std::vector<Choice> step_choices_;
    std::deque<Prompt> queue_;
    std::vector<Sequence> running_;  // admission order
    std::vector<int32_t> free_slots_;
    std::vector<Generation> finished_;
    std::vector<DraftRequest> requests_;
    std::vector<int32_t> drafts_;
    std::vector<Proposal> proposals_;  // of drafts_; empty: coupled
    std::vector<DrawRequest> draws_;
    std::vector<int32_t> target_;  // tokens of the choices at hand
    std::vector<int32_t> block_;
    std::vector<uint8_t> write_;
    uint64_t hash_ = 0;  // of everything drafted and emitted
    EngineStats stats_;
};

}  // namespace quadrille
