// SPDX-License-Identifier: Apache-2.0
#include "jobs/bench/bench_options.h"

#include "jobs/options/common_flags.h"
#include "jobs/prompts/prompt_source_options.h"

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

constexpr const char* kGlm = "glm-5.3-flash";
constexpr int64_t kMostLayers = 45;
constexpr int64_t kDraftedLayers = 5;  // as many as the drafter reads

// The folder's name in the report says what was made.
void finish_synthetic(BenchOptions& options) {
    if (options.synthetic.empty()) return;
    if (!options.target.empty() || options.draft != "none") {
        fail_usage(
            "--synthetic: expected neither --target nor --draft (EXL3_MODEL, DFLASH_DRAFT) beside "
            "it");
    }
    const bool native = options.dense_bits == "native";
    options.made = MadeChoice{
        .layers = options.layers,
        .routed_bits = static_cast<int32_t>(options.routed_bits),
        .dense_bits = native ? 0 : options.dense_bits[0] - '0',
        .routing = options.routing == "uniform" ? MadeRouting::uniform : MadeRouting::overlap50};
    options.target =
        fmt::format("made {} {} layers routed {} bits dense {} {}", kGlm, options.layers,
                    options.routed_bits, options.dense_bits, options.routing);
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
    app.add_option("--synthetic", options.synthetic, "a model made up on the device, no files")
        ->check(one_of({kGlm}))
        ->option_text("NAME");
    add_number(app, "--routed-bits", options.routed_bits, 1, 8, "its routed experts' bits [2]")
        ->group("Synthetic");
    app.add_option("--dense-bits", options.dense_bits, "its other matrices': 4, 6 or native")
        ->check(one_of({"4", "6", "native"}))
        ->option_text("BITS")
        ->group("Synthetic");
    add_number(app, "--layers", options.layers, 1, kMostLayers, "its layers [45]")
        ->group("Synthetic");
    app.add_option("--routing", options.routing, "its rows' experts: uniform or overlap50")
        ->check(one_of({"uniform", "overlap50"}))
        ->option_text("HOW")
        ->group("Synthetic");
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
    add_sampling(app, options.record, "Sampling");
    add_machine_flags(
        app, options,
        {.tp = "ranks that share one model: 1, 2 or 4 [all]",
         .backend = "auto, cpu, cuda, check, cpu-plain, -avx2, -avx512",
         .backends = {"auto", "cpu", "cuda", "check", "cpu-plain", "cpu-avx2", "cpu-avx512"}},
        "Running");
}

void finish(BenchOptions& options, const Invocation& /*invocation*/) {
    finish_synthetic(options);
    finish_model(options);
    if (options.k.empty()) {
        options.k.assign(1, 0);
        if (options.draft != "none" || options.made) options.k.push_back(2);
    }
    check_different("--k", options.k);
    check_different("--concurrency", options.concurrency);
    check_drafts(options, std::ranges::max(options.k));
    if (options.made && std::ranges::max(options.k) > 0 && options.layers < kDraftedLayers) {
        fail_usage(fmt::format("--layers {}: expected {} at least with drafts (--k 0: any)",
                               options.layers, kDraftedLayers));
    }
}

}  // namespace quadrille
