// SPDX-License-Identifier: Apache-2.0
// bench: how fast the step loop runs on this machine, next to what it could reach: one run for
// every K and concurrency, all of the same records and draws, without end tokens, so that all of
// them must write the same tokens.
#pragma once

#include "io/records.h"
#include "jobs/bench/bench_options.h"
#include "jobs/options/job.h"

#include <cstdint>
#include <vector>

namespace quadrille {

// The exit code. Start-up errors are thrown on all ranks alike (AgreedError); later ones end the
// job through Fatal: Error{internal} where two runs wrote different tokens (after the report).
int run_bench(const BenchOptions& options, const RankStart& start);

// `records` prompts of `tokens` ids below `vocabulary`, uniform, the same for ever.
std::vector<Prompt> made_up_prompts(int64_t records, int64_t tokens, int64_t vocabulary);

}  // namespace quadrille
