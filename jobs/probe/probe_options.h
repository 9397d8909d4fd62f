// SPDX-License-Identifier: Apache-2.0
// What probe is asked to look at, and its flags.
#pragma once

#include "jobs/options/job.h"
#include "jobs/options/model_options.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct ProbeOptions : ModelOptions {
    std::string capture;  // capture.h5
    int64_t limit = 0;    // sequences, the first ones; 0: all
};

void add_flags(CLI::App& app, ProbeOptions& options);
void finish(ProbeOptions& options, const Invocation& invocation);

}  // namespace quadrille
