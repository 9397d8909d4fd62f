// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "jobs/generate/generate_options.h"
#include "jobs/options/job.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct PlanOptions {
    GenerateOptions generate;  // what is planned; prompts and out may be missing
    int64_t ranks = 0;         // that share one model; 0: --tp, or 1
    double memory = 0;         // GB a rank; 0: of this machine
    std::string json;          // "": none
};

void add_flags(CLI::App& app, PlanOptions& options);
void finish(PlanOptions& options, const Invocation& invocation);

}  // namespace quadrille
