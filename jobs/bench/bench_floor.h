// SPDX-License-Identifier: Apache-2.0
// The floor of a measured run: that of its mean decode pass and of all its prefill passes.
#pragma once

#include "drafter/dflash2/step_work.h"
#include "jobs/bench/bench_report.h"
#include "runtime/model/work_bound.h"

#include <cstdint>
#include <span>

namespace quadrille {

// Sets run.work, decode_floor and prefill_floor, without collectives, from what the run counted.
// `passes_by_records`[b]: decode passes of b records; `context`: mean tokens before a decode pass.
void set_floor(BenchRun& run, const StepModel& model, const MachineRates& rates,
               std::span<const int64_t> passes_by_records, int64_t context);

}  // namespace quadrille
