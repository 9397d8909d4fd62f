// SPDX-License-Identifier: Apache-2.0
// The floor of a whole step on one rank: draft, verify, context of the accepted rows; and of a
// prefill pass with the context it leaves. The target's head counts twice where there are drafts.
// Pure functions, as runtime/model/work_bound.h, which has the vocabulary.
#pragma once

#include "drafter/dflash2/draft_plan.h"
#include "io/checkpoint/model_config.h"
#include "runtime/model/shard.h"
#include "runtime/model/work_bound.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace quadrille {

// The target and, with K > 0, its drafter, as one rank holds them.
struct StepModel {
    ModelConfig config;
    StorageOf storage;
    ShardPlan plan;
    std::optional<DraftConfig> draft;  // absent: no drafter
    StorageOf draft_storage;
    DraftPlan draft_plan;
};

// A decode pass of contexts.size() records: K + 1 rows each. `pending`: rows that the last step
// accepted, of each record. `overlap`: as distinct_experts. K = 0: no drafter runs.
struct StepShape {
    std::vector<int64_t> contexts;
    int32_t k = 0;
    double pending = 1;
    double overlap = 0;
};
std::vector<OpWork> step_work(const StepModel& model, const StepShape& shape);

// A prefill pass of `rows` tokens whose last row of each sequence goes through the head.
// `drafting`: the drafter's context is written too.
std::vector<OpWork> prefill_work(const StepModel& model, double rows, std::vector<int64_t> contexts,
                                 bool drafting, double overlap = 0.0);

}  // namespace quadrille
