// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/generate_options.h"

#include "io/prompts/option_table.h"
#include "jobs/options/common_flags.h"
#include "jobs/options/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

namespace quadrille {

namespace {

constexpr int64_t kShortestWatch = 4;    // of Watchdog
constexpr const char* kSlurm = "slurm";  // of --max-time
constexpr int64_t kUntilJobEnds = -1;
constexpr int64_t kBeforeJobEnds = 15;  // seconds for the last commit and the end of all ranks

// Seconds that a run may take in a Slurm job which ends at `end` (Unix time, of Slurm).
int64_t time_until(const std::string& end) {
    const std::optional<int64_t> at = parse_integer(end);
    if (!at) {
        fail_usage(
            fmt::format("--max-time slurm: expected the job's end in {}, found {} (Slurm sets it "
                        "from 23.02 on; "
                        "the scripts of jobs/slurm/ ask squeue)",
                        kSlurmEnd, end.empty() ? "nothing" : fmt::format("'{}'", end)));
    }
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    return std::max<int64_t>(1, *at - seconds - kBeforeJobEnds);
}

void add_records(CLI::App& app, GenerateOptions& options) {
    const std::string records = "Records";
    add_number(app, "--max-new-tokens", options.record.max_new_tokens, 0, kMaxTokens,
               "new tokens per record [256]")
        ->group(records);
    add_number(app, "--max-context", options.max_context, 2, kMaxTokens,
               "tokens per record [as the longest prompt needs]")
        ->group(records);
    app.add_flag("--ignore-eos", options.record.ignore_eos, "do not stop at an end token")
        ->group(records);
    add_prompt_choice(app, options, records);
    app.add_flag("--no-text", options.no_text, "write tokens, no text")->group(records);
    app.add_flag("--strict", options.strict, "a bad record stops the job before it starts")
        ->group(records);
    app.add_flag("--fail-on-error", options.fail_on_error, "exit 1 when a record had an error")
        ->group(records);
}

void add_draws(CLI::App& app, GenerateOptions& options) {
    const std::string group = "Sampling";
    add_sampling(app, options.record, group);
    app.add_option("--seed", options.seed, "seed of the run [0]")
        ->check(unsigned_integer())
        ->option_text("N")
        ->group(group);
    add_number(app, "--n", options.record.samples, 1, options::kMaxSamples,
               "samples of each prompt [1]")
        ->group(group);
    app.add_option_function<std::string>(
           "--accept",
           [&options](const std::string& rule) {
               options.accept = rule == "coupled" ? AcceptRule::coupled : AcceptRule::rejection;
           },
           "of sampled drafts: coupled or rejection [coupled]")
        ->check(one_of({"coupled", "rejection"}))
        ->option_text("RULE")
        ->group(group);
}

void add_running(CLI::App& app, GenerateOptions& options) {
    const std::string running = "Running";
    add_number(app, "--max-seqs", options.max_seqs, 1, 4096,
               "at once (or MAX_NUM_SEQS) [what fits, up to 256]")
        ->group(running);
    add_machine_flags(app, options,
                      {.tp = "ranks that share one model; more form groups [all]",
                       .backend = "auto, cpu, cuda or check [auto]",
                       .backends = {"auto", "cpu", "cuda", "check"}},
                      running);
    add_output_exists(app, options.output_exists, true)->group(running);
    app.add_option_function<std::string>(
           "--max-time",
           [&options](const std::string& text) {
               options.max_time = text == kSlurm ? kUntilJobEnds : *parse_time(text);
           },
           "end within this time, resumable; slurm: the job's")
        ->check(time_value(1, kSlurm))
        ->option_text("TIME")
        ->group(running);
    add_time(app, "--grace", options.grace, 0, "for running records when asked to stop [20]")
        ->group(running);
    add_time(app, "--watchdog", options.watchdog, 0,
             "a rank silent for so long is lost, 0: off [300]")
        ->group(running);
    add_text(app, "--save-hidden", options.save_hidden, "a capture file",
             "capture what was generated (or DFLASH_SAVE_HIDDEN)", "FILE")
        ->group(running);
    add_text(app, "--heartbeat", options.heartbeat, "a file",
             "progress as JSON, renewed every 10 s", "FILE")
        ->group(running);
    add_text(app, "--append-tsv", options.tsv, "a file", "append rows as in docs/results.tsv",
             "FILE")
        ->group(running);
    app.add_flag("--verify-weights", options.verify_weights, "read and check every byte first")
        ->group(running);
    app.add_flag("--dry-run", options.dry_run, "check everything, run nothing")->group(running);
}

}  // namespace

void add_flags(CLI::App& app, GenerateOptions& options) {
    add_model_folders(app, options);
    add_number(app, "--k", options.k, 0, 63, "drafts per step (or DFLASH_K) [2 with a drafter]");
    add_prompts(app, options);
    add_text(app, "--out", options.out, "an output file", "generations, HDF5", "FILE");
    add_records(app, options);
    add_draws(app, options);
    add_running(app, options);
}

int64_t most_slots(const GenerateOptions& options, int64_t records) {
    const int64_t most = options.max_seqs > 0 ? options.max_seqs : kMostSlots;
    return records > 0 ? std::min(most, records) : most;
}

bool draws_filtered(const GenerateOptions& options) {
    const RecordOptions& record = options.record;
    return record.top_p < 1 || record.top_k > 0 || record.min_p > 0 || record.logprobs >= 0;
}

void finish(GenerateOptions& options, const Invocation& invocation) {
    need(!options.prompts.empty() || !options.prompt_texts.empty() || options.target.empty(),
         "--prompts", "at least one prompts file (or --prompt TEXT)");
    need(!options.out.empty() || options.target.empty(), "--out", "an output file");
    finish_planned(options, invocation);
}

void finish_planned(GenerateOptions& options, const Invocation& invocation) {
    options.slurm_job = value_of(invocation, kSlurmJob);
    const std::string locking = value_of(invocation, kLocking);
    if (locking == "FALSE" || locking == "0") options.locking = Locking::off;
    if (locking == "BEST_EFFORT") options.locking = Locking::best_effort;
    options.command_line = fmt::format("quadrille {}", fmt::join(invocation.arguments, " "));

    if (options.max_time == kUntilJobEnds) {
        options.max_time = time_until(value_of(invocation, kSlurmEnd));
    }
    finish_model(options);
    check_drafts(options, options.k);
    if (!options.save_hidden.empty()) {
        need(options.draft != "none", "--save-hidden",
             "a drafter, whose layers are tapped (--draft)");
    }
    if (options.watchdog > 0 && options.watchdog < kShortestWatch) {
        fail_usage(fmt::format("--watchdog: expected 0 (off) or at least {} s, found {}",
                               kShortestWatch, options.watchdog));
    }
    if (options.k < 0) options.k = options.draft == "none" ? 0 : 2;
}

}  // namespace quadrille
