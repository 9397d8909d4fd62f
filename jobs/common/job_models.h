// SPDX-License-Identifier: Apache-2.0
// The models of a job: what the target's and the drafter's folders hold and whether they go
// together, before anything is loaded; then both in a backend's memory.
#pragma once

#include "drafter/make_drafter.h"
#include "io/checkpoint/made_model.h"
#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "io/h5/h5.h"
#include "jobs/common/memory_plan.h"
#include "kernels/backend.h"
#include "runtime/drafter.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

struct ModelChoice {
    std::string target;          // folder
    std::string draft = "none";  // folder
    DraftPlacement placement = DraftPlacement::sharded;
    int32_t k = 0;  // drafts per step at most
    // A model without files, with its drafter where k > 0: the folders are not looked at.
    std::optional<MadeChoice> made{};
    bool identified = true;  // false: headers are enough, there is no identity()
};

// `slots` sequences of `capacity` tokens with blocks of up to k drafts. No pass is larger than all
// of them at full length.
ModelLimits model_limits(int64_t slots, int64_t capacity, int64_t max_batched_tokens, int32_t k);

// Rows of the largest prefill pass, as EngineOptions::max_batched_tokens.
int32_t prefill_rows(const ModelLimits& limits);

// A target that is not loaded yet.
struct TargetFiles {
    ModelConfig config;
    Checkpoint checkpoint;
};

class JobModels {
  public:
    // Reads for one of `ranks` ranks. Error{input} for what the folders hold, Error{usage} for a k,
    // a placement or ranks that they do not allow. Not collective.
    // `opening`: as Checkpoint's, of the target.
    JobModels(const ModelChoice& choice, int ranks, int rank,
              const Checkpoint::Opening& opening = {});
    JobModels(const JobModels&) = delete;
    JobModels& operator=(const JobModels&) = delete;

    const ModelConfig& config() const { return files_.config; }
    const Checkpoint& checkpoint() const { return files_.checkpoint; }
    const h5::Attributes& identity() const { return identity_; }  // model_identity
    bool drafts() const { return drafter_files_.has_value(); }
    // These need a drafter.
    const DraftConfig& draft_config() const { return drafter_files_->config; }
    const Checkpoint& draft_checkpoint() const { return drafter_files_->checkpoint; }
    const DraftPlan& draft_plan() const { return drafter_files_->plan; }

    // What a run takes that has these models.
    MemoryPlan plan(const RunPlan& run) const;

    // Error{input} for tensors. `known_tokens`: ids from here on are never drafted. `taps`:
    // layers that the target shows where there is no drafter. Not collective;
    // backend, communicator and position outlive this.
    void load(Backend& backend, Communicator& comm, Position& position, const ModelLimits& limits,
              int64_t known_tokens, const std::vector<int64_t>& taps = {},
              const LoadProgress& progress = {});
    // Once loaded.
    TargetModel& target() { return *target_; }
    Drafter* drafter() { return drafter_.get(); }  // nullptr: none

  private:
    TargetFiles files_;
    std::optional<DrafterFiles> drafter_files_;  // absent: no drafter
    h5::Attributes identity_;
    std::optional<TargetModel> target_;
    std::unique_ptr<Drafter> drafter_;
};

}  // namespace quadrille
