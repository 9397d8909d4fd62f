// SPDX-License-Identifier: Apache-2.0
// The floor of the decode passes of a run (docs/design.md §10), from what the run counted and the
// rates of the machine.
#pragma once

#include "drafter/dflash2/step_work.h"
#include "jobs/common/job_models.h"
#include "runtime/model/work_bound.h"

#include <cstdint>
#include <map>

namespace quadrille {

// What a rank holds of loaded models.
StepModel step_model(JobModels& models);

// Means over decode passes.
struct MeanPass {
    double records = 1;
    int64_t context = 0;  // tokens before the pass
    int32_t k = 0;
    double accepted = 0;  // drafts of a record
};

// Seconds by kind of work, without collectives. Between two whole numbers of records the floor is
// taken to be linear.
std::map<WorkKind, double> floor_of(const StepModel& model, const MachineRates& rates,
                                    const MeanPass& pass);

}  // namespace quadrille
