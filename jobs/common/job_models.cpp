// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/job_models.h"

#include "runtime/engine.h"
#include "runtime/model/shard.h"

#include <algorithm>
#include <vector>

namespace quadrille {
namespace {

// Read first: of a folder with several faults the configuration's is told.
ModelConfig config_for(const std::string& folder, int ranks, int rank) {
    ModelConfig config = read_model_config(folder);
    plan_shards(config, ranks, rank);
    return config;
}

}  // namespace

ModelLimits model_limits(int64_t slots, int64_t capacity, int64_t max_batched_tokens, int32_t k) {
    const int64_t whole = (slots * capacity + kPrefillGrid - 1) / kPrefillGrid * kPrefillGrid;
    const int64_t rows = std::max(std::min(max_batched_tokens, whole), slots * (k + 1));
    return {.slots = static_cast<int32_t>(slots),
            .capacity = capacity,
            .max_rows = static_cast<int32_t>(rows),
            .max_block = k + 1};
}

int32_t prefill_rows(const ModelLimits& limits) {
    return limits.max_rows / kPrefillGrid * kPrefillGrid;
}

JobModels::JobModels(const ModelChoice& choice, int ranks, int rank)
    : placement_(choice.placement),
      config_(config_for(choice.target, ranks, rank)),
      checkpoint_(choice.target) {
    if (choice.draft == "none") return;
    draft_config_ = read_draft_config(choice.draft);
    check_draft_config(*draft_config_, config_, choice.k);
    draft_plan_ = plan_draft(*draft_config_, placement_, ranks, rank);
    draft_checkpoint_.emplace(choice.draft);
    check_draft_tensors(*draft_config_, *draft_checkpoint_);
}

void JobModels::load(Backend& backend, Communicator& comm, Position& position,
                     const ModelLimits& limits, int64_t known_tokens) {
    target_.emplace(backend, comm, position, config_, checkpoint_, limits,
                    draft_config_ ? draft_config_->target_layer_ids : std::vector<int64_t>{});
    if (!draft_config_) return;
    drafter_.emplace(backend, comm, position, *draft_config_, *draft_checkpoint_, *target_,
                     DraftOptions{.placement = placement_, .known_tokens = known_tokens});
}

}  // namespace quadrille
