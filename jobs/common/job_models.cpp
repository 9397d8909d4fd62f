// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/job_models.h"

#include "jobs/common/model_identity.h"
#include "runtime/model/shard.h"
#include "runtime/prefill_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

// A replay is to be several times as fast as the start that emitted the tokens, else a long record
// is never finished in short starts; a row costs 1/32 of a slot's KDA state.
constexpr int32_t kReplayBlock = 8;

TargetFiles open_target(const ModelChoice& choice, int ranks, int rank,
                        const Checkpoint::Opening& opening) {
    if (choice.made) {
        MadeTarget made = make_glm_target(*choice.made);
        plan_shards(made.config, ranks, rank);
        return {std::move(made.config), std::move(made.checkpoint)};
    }
    // Read first: of a folder with several faults the configuration's is told.
    ModelConfig config = read_model_config(choice.target);
    plan_shards(config, ranks, rank);
    return {std::move(config), Checkpoint(choice.target, opening)};
}

}  // namespace

ModelLimits model_limits(int64_t slots, int64_t capacity, int64_t max_batched_tokens, int32_t k) {
    const int64_t whole = prefill_ceiling(slots * capacity);
    const int64_t rows = std::max(std::min(max_batched_tokens, whole), slots * (k + 1));
    return {.slots = static_cast<int32_t>(slots),
            .capacity = capacity,
            .max_rows = static_cast<int32_t>(rows),
            .max_block = k + 1,
            .replay_block = kReplayBlock};
}

int32_t prefill_rows(const ModelLimits& limits) {
    return static_cast<int32_t>(prefill_floor(limits.max_rows));
}

JobModels::JobModels(const ModelChoice& choice, int ranks, int rank,
                     const Checkpoint::Opening& opening)
    : files_(open_target(choice, ranks, rank, opening)) {
    const DrafterChoice drafter = {
        .folder = choice.draft, .placement = choice.placement, .k = choice.k};
    if (choice.made && choice.k > 0) {
        drafter_files_ =
            open_drafter(drafter, make_glm_drafter(choice.made->layers), config(), ranks, rank);
    } else if (choice.draft != "none") {
        drafter_files_ = open_drafter(drafter, config(), ranks, rank);
    }
    if (!choice.identified) return;
    identity_ =
        model_identity(checkpoint(), drafter_files_ ? &drafter_files_->checkpoint : nullptr);
}

MemoryPlan JobModels::plan(const RunPlan& run) const {
    return plan_memory(config(), checkpoint(), drafter_files_ ? &*drafter_files_ : nullptr, run);
}

void JobModels::load(Backend& backend, Communicator& comm, Position& position,
                     const ModelLimits& limits, int64_t known_tokens,
                     const std::vector<int64_t>& taps, const LoadProgress& progress) {
    target_.emplace(backend, comm, position, config(), checkpoint(), limits,
                    drafter_files_ ? drafter_files_->taps() : taps, progress);
    if (!drafter_files_) return;
    drafter_ =
        make_drafter(backend, comm, position, *drafter_files_, *target_, known_tokens, progress);
}

}  // namespace quadrille
