// SPDX-License-Identifier: Apache-2.0
// generate: prompts.h5 to generations.h5 on MPI ranks.
#pragma once

#include "jobs/options.h"
#include "runtime/mpi.h"
#include "runtime/parent.h"

namespace quadrille {

inline constexpr int kResumable = 75;  // ended on request before its records did

// The exit code. Start-up errors are thrown on all ranks alike (AgreedError); others end the job
// through Fatal. `parent` was made before MPI started.
int run_generate(const GenerateOptions& options, MpiSession& session, Parent parent);

}  // namespace quadrille
