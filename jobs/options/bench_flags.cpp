// SPDX-License-Identifier: Apache-2.0
// The flags of bench: option_flags.h.
#include "jobs/options/option_checks.h"
#include "jobs/options/option_flags.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace quadrille {

namespace {

constexpr int64_t kTokenGrid = 64;  // prefill chunks are cut at its multiples
constexpr int64_t kMaxTokens = int64_t{1} << 24;

[[noreturn]] void fail(const std::string& message) {
    throw Error(ErrorKind::usage, message);
}

void add_running(CLI::App& app, BenchOptions& options) {
    const std::string running = "Running";
    app.add_option("--max-batched-tokens", options.max_batched_tokens,
                   "prefill rows (or MAX_NUM_BATCHED_TOKENS) [7168]")
        ->check(integer(kTokenGrid, kMaxTokens))
        ->option_text("N")
        ->group(running);
    app.add_option("--tp", options.tp, "ranks that share one model: 1, 2 or 4 [all]")
        ->check(integer(1, kAny))
        ->option_text("N")
        ->group(running);
    app.add_option("--backend", options.backend,
                   "auto, cpu, cuda, check, cpu-plain, -avx2, -avx512")
        ->check(one_of({"auto", "cpu", "cuda", "check", "cpu-plain", "cpu-avx2", "cpu-avx512"}))
        ->option_text("NAME")
        ->group(running);
    add_step_flags(app, options, running);
}

void check_different(const char* flag, std::vector<int64_t> values) {
    std::ranges::sort(values);
    const auto twice = std::ranges::adjacent_find(values);
    if (twice != values.end()) {
        fail(fmt::format("{}: expected different numbers, found {} twice", flag, *twice));
    }
}

}  // namespace

void add_flags(CLI::App& app, BenchOptions& options) {
    const auto text = [&app](const char* name, std::string& value, const char* what,
                             const char* help, const char* value_name) {
        app.add_option(name, value, help)->check(not_empty(what))->option_text(value_name);
    };
    const auto number = [&app](const char* name, int64_t& value, int64_t low, int64_t high,
                               const char* help) {
        app.add_option(name, value, help)->check(integer(low, high))->option_text("N");
    };
    const auto numbers = [&app](const char* name, std::vector<int64_t>& value, int64_t low,
                                int64_t high, const char* help) {
        app.add_option(name, value, help)
            ->delimiter(',')
            ->check(integer(low, high))
            ->option_text("N,N...");
    };
    text("--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)", "DIR");
    text("--draft", options.draft, "a drafter's folder or none", "drafter (or DFLASH_DRAFT) [none]",
         "DIR");
    numbers("--k", options.k, 0, 63, "drafts per step, a run each [0,2 with a drafter]");
    numbers("--concurrency", options.concurrency, 1, 4096, "records at once, a run each [1]");
    text("--prompts", options.prompts, "a prompts file", "prompts, as for generate [made up]",
         "FILE");
    number("--prompt-tokens", options.prompt_tokens, 1, kMaxTokens,
           "tokens of a made-up prompt [128]");
    number("--new-tokens", options.new_tokens, 1, kMaxTokens, "new tokens per record [64]");
    number("--limit", options.limit, 1, kAny, "records [largest concurrency; all of FILE]");
    number("--repeat", options.repeat, 1, 1000, "runs of each, the median is told [1]");
    text("--json", options.json, "a file", "report, JSON", "FILE");
    text("--append-tsv", options.tsv, "a file", "append rows as in docs/results.tsv", "FILE");
    add_running(app, options);
}

void finish(BenchOptions& options) {
    if (options.target.empty()) {
        fail("--target: expected a checkpoint folder (or EXL3_MODEL), found nothing");
    }
    options.max_batched_tokens -= options.max_batched_tokens % kTokenGrid;
    const bool drafter = options.draft != "none";
    if (options.k.empty()) {
        options.k.assign(1, 0);
        if (drafter) options.k.push_back(2);
    }
    check_different("--k", options.k);
    check_different("--concurrency", options.concurrency);
    const int64_t most = std::ranges::max(options.k);
    if (!drafter && most > 0) {
        fail(fmt::format("--k: expected 0 without a drafter (--draft none), found {}", most));
    }
}

}  // namespace quadrille
