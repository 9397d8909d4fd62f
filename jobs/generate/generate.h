// SPDX-License-Identifier: Apache-2.0
// generate: prompts.h5 to generations.h5 on MPI ranks.
#pragma once

#include "jobs/options/options.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"

namespace quadrille {

inline constexpr int kResumable = 75;  // ended on request before its records did

// The exit code. Start-up errors are thrown on all ranks alike (AgreedError); others end the job
// through Fatal. `launcher` was made before MPI started.
int run_generate(const GenerateOptions& options, MpiSession& session, Launcher launcher);

}  // namespace quadrille
