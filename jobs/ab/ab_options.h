// SPDX-License-Identifier: Apache-2.0
// What ab is asked to compare, and its flags.
#pragma once

#include "jobs/options/job.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct AbOptions {
    std::vector<std::string> inputs;  // generations.h5 of each drafter, the first is compared with
    std::string prompts;              // whose /prompts/kind names kinds; "": one kind
    std::string json;                 // a file; "": none
    int64_t resamples = 10000;
};

void add_flags(CLI::App& app, AbOptions& options);
void finish(AbOptions& options, const Invocation& invocation);

}  // namespace quadrille
