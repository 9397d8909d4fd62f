// SPDX-License-Identifier: Apache-2.0
// generate: prompts.h5 to generations.h5 on MPI ranks.
#pragma once

#include "jobs/options.h"
#include "runtime/mpi.h"

namespace quadrille {

// The exit code. Start-up errors are thrown on all ranks alike (AgreedError); later ones end the
// job through Fatal.
int run_generate(const GenerateOptions& options, MpiSession& session);

}  // namespace quadrille
