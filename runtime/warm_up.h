// SPDX-License-Identifier: Apache-2.0
// Everything that a run's steps need, made before its first record: the largest prefill and every
// size of a decode step run on records of our own, whose results are dropped. Scratch has grown,
// kernels are loaded and steps are recorded then. Slots that were used so are as good as new.
#pragma once

#include "io/records.h"
#include "runtime/engine.h"
#include "runtime/model/target_model.h"

#include <cstdint>

namespace quadrille {

struct WarmUp {
    ModelLimits limits;
    int32_t prefill_rows = 0;  // EngineOptions::max_batched_tokens
    int32_t k = 0;
    RecordOptions record;  // how the records of the run are drawn, as a rule
};

// Collective. `engine` is idle; its counts begin anew.
void warm_up(Engine& engine, const WarmUp& run);

}  // namespace quadrille
