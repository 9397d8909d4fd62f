// SPDX-License-Identifier: Apache-2.0
// Which prompts a job reads and what their records are asked for, a base of the job's options.
#pragma once

#include "io/records.h"
#include "jobs/options/option_values.h"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace quadrille {

struct PromptSourceOptions {
    std::vector<std::string> prompts;  // prompts.h5 files, text lines or JSON lines
    std::vector<std::string> prompt_texts;
    RecordOptions record;  // defaults of the records; its own seed stays -1
    int64_t limit = 0;     // prompts to run, the first ones of all files; 0: all
    Shard shard;           // of those
    bool scores = false;   // score_from is obeyed
};

// --prompts and --prompt.
void add_prompts(CLI::App& app, PromptSourceOptions& options);
// --limit and --shard, in a group of the help.
void add_prompt_choice(CLI::App& app, PromptSourceOptions& options, const std::string& group);
// --temperature, --top-p, --top-k, --min-p, --repetition-penalty, --logprobs, with the ranges of
// io/prompts/option_table.h.
void add_sampling(CLI::App& app, RecordOptions& record, const std::string& group);

}  // namespace quadrille
