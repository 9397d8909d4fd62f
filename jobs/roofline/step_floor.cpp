// SPDX-License-Identifier: Apache-2.0
#include "jobs/roofline/step_floor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace quadrille {

StepModel step_model(JobModels& models) {
    StepModel model;
    model.config = models.config();
    model.storage = stored_in(models.checkpoint());
    model.plan = models.target().plan();
    if (!models.drafts()) return model;
    model.draft = models.draft_config();
    model.draft_storage = stored_in(models.draft_checkpoint());
    model.draft_plan = models.draft_plan();
    return model;
}

std::map<WorkKind, double> floor_of(const StepModel& model, const MachineRates& rates,
                                    const MeanPass& pass) {
    std::map<WorkKind, double> floors;
    const double records = std::max(1.0, pass.records);
    const double below = std::floor(records);
    for (const auto& [count, share] :
         {std::pair(below, 1 - (records - below)), std::pair(below + 1, records - below)}) {
        if (share == 0) continue;
        const std::vector<int64_t> contexts(static_cast<size_t>(count), pass.context);
        const std::vector<OpWork> ops =
            step_work(model, {.contexts = contexts, .k = pass.k, .pending = 1 + pass.accepted});
        for (const auto& [kind, floor] : floors_by_kind(ops, rates)) floors[kind] += share * floor;
    }
    return floors;
}

}  // namespace quadrille
