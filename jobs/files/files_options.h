// SPDX-License-Identifier: Apache-2.0
// What inspect, pack, unpack and merge are asked to do, and their flags.
#pragma once

#include "jobs/options/job.h"
#include "jobs/options/option_values.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct InspectOptions {
    std::vector<std::string> paths;  // files of ours or checkpoint folders
    int64_t limit = 5;               // records shown of each file; 0: none
    bool json = false;               // generations, for programs
};

struct PackOptions {
    std::vector<std::string> inputs;  // text or JSON lines
    std::string out;                  // prompts.h5
    std::string target;               // checkpoint whose tokenizer is used where one is needed
    std::string format = "auto";      // auto (by suffix), text, jsonl
    int64_t limit = 0;                // 0: all
    OutputExists output_exists = OutputExists::fail;
};

struct UnpackOptions {
    std::vector<std::string> inputs;  // generations.h5 files
    std::string out = "-";            // JSON lines; "-": standard output
    std::string format = "jsonl";     // jsonl, openai (lines of a batch output file)
    std::string target;               // checkpoint whose tokenizer spells out log-probabilities
    int64_t limit = 0;                // 0: all
    OutputExists output_exists = OutputExists::fail;
};

struct MergeOptions {
    std::vector<std::string> inputs;  // generations.h5 of every shard
    std::string out;                  // generations.h5
    OutputExists output_exists = OutputExists::fail;
};

void add_flags(CLI::App& app, InspectOptions& options);
void add_flags(CLI::App& app, PackOptions& options);
void add_flags(CLI::App& app, UnpackOptions& options);
void add_flags(CLI::App& app, MergeOptions& options);

void finish(InspectOptions& options, const Invocation& invocation);
void finish(PackOptions& options, const Invocation& invocation);
void finish(UnpackOptions& options, const Invocation& invocation);
void finish(MergeOptions& options, const Invocation& invocation);

}  // namespace quadrille
