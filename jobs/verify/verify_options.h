// SPDX-License-Identifier: Apache-2.0
// What verify is asked to check, and its flags. Settings of the run come from the file itself.
#pragma once

#include "jobs/generate/generate_options.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct VerifyOptions {
    GenerateOptions generate;  // of the replay
    std::string results;       // generations.h5
    int64_t sample = 32;       // prompts that are replayed, about; 0: all
    std::string json;          // report file; "": none
};

void add_flags(CLI::App& app, VerifyOptions& options);
void finish(VerifyOptions& options, const Invocation& invocation);

}  // namespace quadrille
