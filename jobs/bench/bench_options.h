// SPDX-License-Identifier: Apache-2.0
// What bench is asked to measure, and its flags.
#pragma once

#include "io/records.h"
#include "jobs/options/job.h"
#include "jobs/options/model_options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct BenchOptions : ModelOptions {
    std::vector<int64_t> k;                  // drafts per step, a run each
    std::vector<int64_t> concurrency = {1};  // records at once, a run each
    std::string prompts;                     // as generate takes them; "": made-up tokens
    int64_t prompt_tokens = 128;             // of a made-up prompt
    int64_t new_tokens = 64;                 // of every record
    int64_t limit = 0;                  // records; 0: the largest concurrency, or all of the file
    RecordOptions record;               // how tokens are drawn
    std::string synthetic;              // name of a model without files; "": none
    int64_t routed_bits = 2;            // of it
    std::string dense_bits = "native";  // of it
    int64_t layers = 45;                // of it
    std::string routing = "uniform";    // of it
    int64_t repeat = 1;                 // runs of a configuration, of which the median is told
    std::string json;                   // report file; "": none
    std::string tsv;                    // file that rows are appended to; "": none
};

void add_flags(CLI::App& app, BenchOptions& options);
void finish(BenchOptions& options, const Invocation& invocation);

}  // namespace quadrille
