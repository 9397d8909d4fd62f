// SPDX-License-Identifier: Apache-2.0
#include "jobs/prompts/prompt_source_options.h"

#include "io/prompts/option_table.h"
#include "jobs/options/common_flags.h"

#include <algorithm>

namespace quadrille {

namespace {

// A flag for a record's option, with the range of io/prompts/option_table.h.
void add_record_flag(CLI::App& app, RecordOptions& record, const std::string& flag,
                     const char* help, const std::string& group) {
    std::string name = flag.substr(2);
    std::ranges::replace(name, '-', '_');
    for (const options::IntOption& option : options::kInts) {
        if (option.name != name) continue;
        app.add_option_function<int64_t>(
               flag, [&record, set = option.set](int64_t value) { set(record, value); }, help)
            ->check(integer(option.low, option.high))
            ->option_text("N")
            ->group(group);
    }
    for (const options::FloatOption& option : options::kFloats) {
        if (option.name != name) continue;
        app.add_option(flag, record.*option.member, help)
            ->check(real(option.low, option.low_allowed, option.high))
            ->option_text("X")
            ->group(group);
    }
}

}  // namespace

void add_prompts(CLI::App& app, PromptSourceOptions& options) {
    app.add_option("--prompts", options.prompts, "prompts: HDF5, .jsonl or .txt")
        ->check(not_empty("a prompts file"))
        ->option_text("FILE...");
    app.add_option("--prompt", options.prompt_texts, "a prompt itself; may be repeated")
        ->check(not_empty("a text"))
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("TEXT");
}

void add_prompt_choice(CLI::App& app, PromptSourceOptions& options, const std::string& group) {
    add_number(app, "--limit", options.limit, 1, kAny, "run the first N prompts only")
        ->group(group);
    app.add_option_function<std::string>(
           "--shard", [&options](const std::string& text) { options.shard = *parse_shard(text); },
           "every N-th prompt, I from 0 to N - 1")
        ->check(shard_value())
        ->option_text("I/N")
        ->group(group);
}

void add_sampling(CLI::App& app, RecordOptions& record, const std::string& group) {
    const auto flag = [&](const char* name, const char* help) {
        add_record_flag(app, record, name, help, group);
    };
    flag("--temperature", "0: greedy [0]");
    flag("--top-p", "keep the fewest tokens of this probability [1]");
    flag("--top-k", "keep the N most probable tokens; 0: all [0]");
    flag("--min-p", "keep tokens of this share of the best [0]");
    flag("--repetition-penalty", "of tokens that are there already [1]");
    flag("--logprobs", "of the chosen token and the N best [none]");
}

}  // namespace quadrille
