// SPDX-License-Identifier: Apache-2.0
// The environment variables the program reads (docs/design.md §9), and nowhere else.
#pragma once

#include "jobs/options/job.h"

#include <array>
#include <string>

namespace quadrille {

struct FromEnvironment {
    const char* variable;
    const char* flag;
};
// A variable fills its flag where the job has the flag and the user did not give it.
inline constexpr std::array kFromEnvironment = {
    FromEnvironment{"EXL3_MODEL", "--target"},
    FromEnvironment{"DFLASH_DRAFT", "--draft"},
    FromEnvironment{"DFLASH_K", "--k"},
    FromEnvironment{"DFLASH_SAVE_HIDDEN", "--save-hidden"},
    FromEnvironment{"MAX_NUM_BATCHED_TOKENS", "--max-batched-tokens"},
    FromEnvironment{"MAX_NUM_SEQS", "--max-seqs"},
};
inline constexpr const char* kCudaGraphs = "CUDA_GRAPHS";         // 0 is the switch --eager
inline constexpr const char* kSlurmJob = "SLURM_JOB_ID";          // for provenance only
inline constexpr const char* kSlurmEnd = "SLURM_JOB_END_TIME";    // of --max-time slurm
inline constexpr const char* kLocking = "HDF5_USE_FILE_LOCKING";  // HDF5's own; our lock obeys it

// Reads argv and these variables.
Invocation read_invocation(int argc, const char* const* argv);

// "" for a variable that is not set.
std::string value_of(const Invocation& invocation, const std::string& variable);

}  // namespace quadrille
