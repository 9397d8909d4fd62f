// SPDX-License-Identifier: Apache-2.0
// How a run of generate is going to lie in memory: its slots, and what --dry-run says of it.
#pragma once

#include "jobs/common/model_session.h"
#include "jobs/generate/generate_options.h"
#include "jobs/generate/run_files.h"
#include "runtime/model/target_model.h"

#include <cstdint>
#include <string>

namespace quadrille {

// As many slots as are asked for, or as fit on every rank, and no more than there are records.
// Collective.
ModelLimits choose_limits(ModelSession& session, const GenerateOptions& options,
                          const RunShape& shape, int32_t k);

// Records, slots, rows, and the memory of this rank by class.
std::string describe_plan(ModelSession& session, const ModelLimits& limits, int64_t records);

}  // namespace quadrille
