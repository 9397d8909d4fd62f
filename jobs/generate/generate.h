// SPDX-License-Identifier: Apache-2.0
// generate: prompts.h5 to generations.h5 on MPI ranks.
#pragma once

#include "jobs/generate/generate_options.h"
#include "jobs/options/job.h"

namespace quadrille {

// The exit code. Start-up errors are thrown on all ranks alike (AgreedError); others end the job
// through Fatal.
int run_generate(const GenerateOptions& options, const RankStart& start);

}  // namespace quadrille
