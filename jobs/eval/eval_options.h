// SPDX-License-Identifier: Apache-2.0
// What eval is asked to read, and its flags.
#pragma once

#include "jobs/options/job.h"
#include "jobs/options/model_options.h"
#include "jobs/prompts/prompt_source_options.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct EvalOptions : ModelOptions, PromptSourceOptions {
    std::string against;    // folder of a checkpoint to compare with; "": none
    int64_t max_seqs = 16;  // records at once
    std::string json;       // report file; "": none
};

void add_flags(CLI::App& app, EvalOptions& options);
void finish(EvalOptions& options, const Invocation& invocation);

}  // namespace quadrille
