// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/option_flags.h"

#include "io/prompts/option_table.h"
#include "jobs/options/option_checks.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace quadrille {

namespace {

constexpr int64_t kTokenGrid = 64;     // prefill chunks are cut at its multiples
constexpr int64_t kShortestWatch = 4;  // of Watchdog
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxSamples = int64_t{1} << 20;

[[noreturn]] void fail(const std::string& message) {
    throw Error(ErrorKind::usage, message);
}

CLI::Option* add_time(CLI::App& app, const char* name, int64_t& value, int64_t low,
                      const char* help) {
    return app
        .add_option_function<std::string>(
            name, [&value](const std::string& text) { value = *parse_time(text); }, help)
        ->check(time_value(low))
        ->option_text("TIME");
}

CLI::Option* add_output_exists(CLI::App& app, OutputExists& value) {
    return app
        .add_option_function<std::string>(
            "--output-exists",
            [&value](const std::string& text) {
                value = text == "overwrite" ? OutputExists::overwrite : OutputExists::fail;
            },
            "fail or overwrite when OUT is complete [fail]")
        ->check(one_of({"fail", "overwrite"}))
        ->option_text("WHAT");
}

CLI::Option* add_shard(CLI::App& app, Shard& value) {
    return app
        .add_option_function<std::string>(
            "--shard", [&value](const std::string& text) { value = *parse_shard(text); },
            "every N-th prompt, I from 0 to N - 1")
        ->check(shard_value())
        ->option_text("I/N");
}

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

void add_sampling(CLI::App& app, GenerateOptions& options) {
    const std::string group = "Sampling";
    const auto flag = [&](const char* name, const char* help) {
        add_record_flag(app, options.record, name, help, group);
    };
    flag("--temperature", "0: greedy [0]");
    flag("--top-p", "keep the fewest tokens of this probability [1]");
    flag("--top-k", "keep the N most probable tokens; 0: all [0]");
    flag("--min-p", "keep tokens of this share of the best [0]");
    flag("--repetition-penalty", "of tokens that are there already [1]");
    flag("--logprobs", "of the chosen token and the N best [none]");
    app.add_option("--seed", options.seed, "seed of the run [0]")
        ->check(unsigned_integer())
        ->option_text("N")
        ->group(group);
    app.add_option("--n", options.samples, "samples of each prompt [1]")
        ->check(integer(1, kMaxSamples))
        ->option_text("N")
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

void need(bool given, const char* flag, const char* wanted) {
    if (!given) fail(fmt::format("{}: expected {}, found nothing", flag, wanted));
}

}  // namespace

template <class Options>
void add_step_flags(CLI::App& app, Options& options, const std::string& group) {
    app.add_option("--comm", options.comm, "auto, mpi or nccl [auto]")
        ->check(one_of({"auto", "mpi", "nccl"}))
        ->option_text("NAME")
        ->group(group);
    app.add_option_function<std::string>(
           "--draft-placement",
           [&options](const std::string& where) {
               options.draft_placement =
                   where == "sharded" ? DraftPlacement::sharded : DraftPlacement::replicated;
           },
           "sharded or replicated drafter [sharded]")
        ->check(one_of({"sharded", "replicated"}))
        ->option_text("WHERE")
        ->group(group);
    app.add_flag("--eager", options.eager, "no CUDA graphs (or CUDA_GRAPHS=0)")->group(group);
}
template void add_step_flags(CLI::App& app, GenerateOptions& options, const std::string& group);
template void add_step_flags(CLI::App& app, BenchOptions& options, const std::string& group);

namespace {

template <class T>
CLI::Option* add_number(CLI::App& app, const char* name, T& value, int64_t low, int64_t high,
                        const char* help) {
    return app.add_option(name, value, help)->check(integer(low, high))->option_text("N");
}

void add_records(CLI::App& app, GenerateOptions& options) {
    const std::string records = "Records";
    add_number(app, "--max-new-tokens", options.record.max_new_tokens, 1, kMaxTokens,
               "new tokens per record [256]")
        ->group(records);
    add_number(app, "--max-context", options.max_context, 2, kMaxTokens,
               "tokens per record [as the longest prompt needs]")
        ->group(records);
    app.add_flag("--ignore-eos", options.record.ignore_eos, "do not stop at an end token")
        ->group(records);
    add_number(app, "--limit", options.limit, 1, kAny, "run the first N prompts only")
        ->group(records);
    add_shard(app, options.shard)->group(records);
    app.add_flag("--no-text", options.no_text, "write tokens, no text")->group(records);
    app.add_flag("--strict", options.strict, "a bad record stops the job before it starts")
        ->group(records);
    app.add_flag("--fail-on-error", options.fail_on_error, "exit 1 when a record had an error")
        ->group(records);
}

void add_running(CLI::App& app, GenerateOptions& options) {
    const std::string running = "Running";
    add_number(app, "--max-seqs", options.max_seqs, 1, 4096,
               "records at once (or MAX_NUM_SEQS) [16]")
        ->group(running);
    add_number(app, "--max-batched-tokens", options.max_batched_tokens, kTokenGrid, kMaxTokens,
               "prefill rows (or MAX_NUM_BATCHED_TOKENS) [7168]")
        ->group(running);
    add_number(app, "--tp", options.tp, 1, kAny,
               "ranks that share one model; more form groups [all]")
        ->group(running);
    app.add_option("--backend", options.backend, "auto, cpu, cuda or check [auto]")
        ->check(one_of({"auto", "cpu", "cuda", "check"}))
        ->option_text("NAME")
        ->group(running);
    add_step_flags(app, options, running);
    add_output_exists(app, options.output_exists)->group(running);
    add_time(app, "--max-time", options.max_time, 1, "end within this time, resumable (exit 75)")
        ->group(running);
    add_time(app, "--grace", options.grace, 0, "for running records when asked to stop [20]")
        ->group(running);
    add_time(app, "--watchdog", options.watchdog, 0,
             "a rank silent for so long is lost, 0: off [300]")
        ->group(running);
    app.add_option("--heartbeat", options.heartbeat, "progress as JSON, renewed every 10 s")
        ->check(not_empty("a file"))
        ->option_text("FILE")
        ->group(running);
    app.add_flag("--dry-run", options.dry_run, "check everything, run nothing")->group(running);
}

}  // namespace

void add_flags(CLI::App& app, GenerateOptions& options) {
    const auto text = [&app](const char* name, std::string& value, const char* what,
                             const char* help, const char* value_name) {
        return app.add_option(name, value, help)->check(not_empty(what))->option_text(value_name);
    };
    text("--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)", "DIR");
    text("--draft", options.draft, "a drafter's folder or none", "drafter (or DFLASH_DRAFT) [none]",
         "DIR");
    add_number(app, "--k", options.k, 0, 63, "drafts per step (or DFLASH_K) [2 with a drafter]");
    app.add_option("--prompts", options.prompts, "prompts: HDF5, .jsonl or .txt")
        ->check(not_empty("a prompts file"))
        ->option_text("FILE...");
    app.add_option("--prompt", options.prompt_texts, "a prompt itself; may be repeated")
        ->check(not_empty("a text"))
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("TEXT");
    text("--out", options.out, "an output file", "generations, HDF5", "FILE");

    add_records(app, options);
    add_sampling(app, options);
    add_running(app, options);
}

void add_flags(CLI::App& app, InspectOptions& options) {
    app.add_option("paths", options.paths, "HDF5 files of ours, checkpoint folders")
        ->check(not_empty("a file or folder"))
        ->option_text("PATH...");
    app.add_option("--limit", options.limit, "records shown of each file [5]")
        ->check(integer(0, kAny))
        ->option_text("N");
}

void add_flags(CLI::App& app, PackOptions& options) {
    app.add_option("inputs", options.inputs, "text lines or JSON lines")
        ->check(not_empty("a file"))
        ->option_text("FILE...");
    app.add_option("--out", options.out, "prompts, HDF5")
        ->check(not_empty("an output file"))
        ->option_text("FILE");
    app.add_option("--target", options.target, "checkpoint with the tokenizer (or EXL3_MODEL)")
        ->check(not_empty("a checkpoint folder"))
        ->option_text("DIR");
    app.add_option("--format", options.format, "auto, text or jsonl [auto: by suffix]")
        ->check(one_of({"auto", "text", "jsonl"}))
        ->option_text("NAME");
    app.add_option("--limit", options.limit, "pack the first N records only")
        ->check(integer(1, kAny))
        ->option_text("N");
    add_output_exists(app, options.output_exists);
}

void add_flags(CLI::App& app, UnpackOptions& options) {
    app.add_option("inputs", options.inputs, "generations, HDF5")
        ->check(not_empty("a file"))
        ->option_text("FILE...");
    app.add_option("--out", options.out, "JSON lines; - is standard output [-]")
        ->check(not_empty("an output file"))
        ->option_text("FILE");
    app.add_option("--format", options.format, "jsonl, or openai: batch output lines [jsonl]")
        ->check(one_of({"jsonl", "openai"}))
        ->option_text("NAME");
    app.add_option("--target", options.target, "checkpoint, for logprobs of openai (or EXL3_MODEL)")
        ->check(not_empty("a checkpoint folder"))
        ->option_text("DIR");
    app.add_option("--limit", options.limit, "unpack the first N records only")
        ->check(integer(1, kAny))
        ->option_text("N");
    add_output_exists(app, options.output_exists);
}

void finish(GenerateOptions& options) {
    need(!options.target.empty(), "--target", "a checkpoint folder (or EXL3_MODEL)");
    need(!options.prompts.empty() || !options.prompt_texts.empty(), "--prompts",
         "at least one prompts file (or --prompt TEXT)");
    need(!options.out.empty(), "--out", "an output file");
    options.max_batched_tokens -= options.max_batched_tokens % kTokenGrid;
    if (options.draft == "none" && options.k > 0) {
        fail(fmt::format("--k: expected 0 without a drafter (--draft none), found {}", options.k));
    }
    if (options.watchdog > 0 && options.watchdog < kShortestWatch) {
        fail(fmt::format("--watchdog: expected 0 (off) or at least {} s, found {}", kShortestWatch,
                         options.watchdog));
    }
    if (options.k < 0) options.k = options.draft == "none" ? 0 : 2;
}
void finish(InspectOptions& options) {
    need(!options.paths.empty(), "inspect", "at least one file or folder");
}
void finish(PackOptions& options) {
    need(!options.inputs.empty(), "pack", "at least one file of text or JSON lines");
    need(!options.out.empty(), "--out", "an output file");
}
void finish(UnpackOptions& options) {
    need(!options.inputs.empty(), "unpack", "at least one generations file");
}

}  // namespace quadrille
