// SPDX-License-Identifier: Apache-2.0
// What probe is asked to look at, and its flags.
#pragma once

#include "jobs/options/job.h"
#include "jobs/options/model_options.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct ProbeOptions : ModelOptions {
    std::string capture;           // capture.h5
    int64_t limit = 0;             // sequences, the first ones; 0: all
    double validation = 0.05;      // share of the sequences held back, as train's
    uint64_t seed = 0;             // of which, as train's
    double damping = 1e-3;         // of ridge maps
    std::string drafter = "none";  // folder; loaded to train's form, not to serve
    double steps_per_second = 0;   // of the target; 0: not known
    std::string refit_fc;          // folder of a new drafter
    std::string reference;         // capture of the target that the drafter was made for
    std::string json;
};

void add_flags(CLI::App& app, ProbeOptions& options);
void finish(ProbeOptions& options, const Invocation& invocation);

}  // namespace quadrille
