// SPDX-License-Identifier: Apache-2.0
#include "jobs/bench/bench_options.h"

#include "jobs/options/common_flags.h"

#include <fmt/format.h>

#include <algorithm>

namespace quadrille {

namespace {

void check_different(const char* flag, std::vector<int64_t> values) {
    std::ranges::sort(values);
    const auto twice = std::ranges::adjacent_find(values);
    if (twice != values.end()) {
        fail_usage(fmt::format("{}: expected different numbers, found {} twice", flag, *twice));
    }
}

}  // namespace

void add_flags(CLI::App& app, BenchOptions& options) {
    const auto numbers = [&app](const char* name, std::vector<int64_t>& value, int64_t low,
                                int64_t high, const char* help) {
        app.add_option(name, value, help)
            ->delimiter(',')
            ->check(integer(low, high))
            ->option_text("N,N...");
    };
    add_model_folders(app, options);
    numbers("--k", options.k, 0, 63, "drafts per step, a run each [0,2 with a drafter]");
    numbers("--concurrency", options.concurrency, 1, 4096, "records at once, a run each [1]");
    add_text(app, "--prompts", options.prompts, "a prompts file",
             "prompts, as for generate [made up]", "FILE");
    add_number(app, "--prompt-tokens", options.prompt_tokens, 1, kMaxTokens,
               "tokens of a made-up prompt [128]");
    add_number(app, "--new-tokens", options.new_tokens, 1, kMaxTokens,
               "new tokens per record [64]");
    add_number(app, "--limit", options.limit, 1, kAny,
               "records [largest concurrency; all of FILE]");
    add_number(app, "--repeat", options.repeat, 1, 1000, "runs of each, the median is told [1]");
    add_text(app, "--json", options.json, "a file", "report, JSON", "FILE");
    add_text(app, "--append-tsv", options.tsv, "a file", "append rows as in docs/results.tsv",
             "FILE");
    add_machine_flags(
        app, options,
        {.tp = "ranks that share one model: 1, 2 or 4 [all]",
         .backend = "auto, cpu, cuda, check, cpu-plain, -avx2, -avx512",
         .backends = {"auto", "cpu", "cuda", "check", "cpu-plain", "cpu-avx2", "cpu-avx512"}},
        "Running");
}

void finish(BenchOptions& options, const Invocation& /*invocation*/) {
    finish_model(options);
    if (options.k.empty()) {
        options.k.assign(1, 0);
        if (options.draft != "none") options.k.push_back(2);
    }
    check_different("--k", options.k);
    check_different("--concurrency", options.concurrency);
    check_drafts(options, std::ranges::max(options.k));
}

}  // namespace quadrille
