// SPDX-License-Identifier: Apache-2.0
// The command line: the only user of CLI11, whose messages are replaced where they do not say what
// was expected and what was found. Environment values are turned into flags that were not given,
// so that they pass the same checks; a message then names the variable.
#include "jobs/options.h"

#include "io/option_table.h"
#include "kernels/check.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

namespace quadrille {
namespace {

constexpr int64_t kTokenGrid = 64;     // prefill chunks are cut at its multiples
constexpr int64_t kShortestWatch = 4;  // of Watchdog
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxSamples = int64_t{1} << 20;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

struct FromEnvironment {
    const char* variable;
    const char* flag;
};
// CUDA_GRAPHS=0 is --eager: a switch, handled apart.
constexpr std::array kFromEnvironment = {
    FromEnvironment{"EXL3_MODEL", "--target"},
    FromEnvironment{"DFLASH_DRAFT", "--draft"},
    FromEnvironment{"DFLASH_K", "--k"},
    FromEnvironment{"MAX_NUM_BATCHED_TOKENS", "--max-batched-tokens"},
    FromEnvironment{"MAX_NUM_SEQS", "--max-seqs"},
};
constexpr const char* kCudaGraphs = "CUDA_GRAPHS";
constexpr const char* kSlurmJob = "SLURM_JOB_ID";          // for provenance only
constexpr const char* kLocking = "HDF5_USE_FILE_LOCKING";  // HDF5's own; our lock obeys it too

[[noreturn]] void fail(const std::string& message) {
    throw Error(ErrorKind::usage, message);
}

template <class T>
std::optional<T> parse_number(const std::string& text) {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end) return std::nullopt;
    return value;
}

CLI::Validator integer(int64_t low, int64_t high) {
    const std::string wanted = high == kAny ? fmt::format("an integer of at least {}", low)
                                            : fmt::format("an integer from {} to {}", low, high);
    return CLI::Validator(
        [=](const std::string& text) -> std::string {
            const std::optional<int64_t> value = parse_number<int64_t>(text);
            if (value && *value >= low && *value <= high) return {};
            return fmt::format("expected {}, found '{}'", wanted, text);
        },
        "");
}

CLI::Validator unsigned_integer() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            if (parse_number<uint64_t>(text)) return {};
            return fmt::format("expected an integer from 0 to 2^64 - 1, found '{}'", text);
        },
        "");
}

// low..high; low itself only if allowed.
CLI::Validator real(double low, bool low_allowed, double high) {
    const std::string wanted =
        high == std::numeric_limits<double>::max()
            ? fmt::format("a finite number {} {}", low_allowed ? "of at least" : "above", low)
            : fmt::format("a number {} {} to {}", low_allowed ? "from" : "above", low, high);
    return CLI::Validator(
        [=](const std::string& text) -> std::string {
            const std::optional<double> value = parse_number<double>(text);
            if (value && (low_allowed ? *value >= low : *value > low) && *value <= high) return {};
            return fmt::format("expected {}, found '{}'", wanted, text);
        },
        "");
}

std::optional<Shard> parse_shard(const std::string& text) {
    const size_t slash = text.find('/');
    if (slash == std::string::npos) return std::nullopt;
    const auto index = parse_number<int64_t>(text.substr(0, slash));
    const auto count = parse_number<int64_t>(text.substr(slash + 1));
    if (!index || !count || *index < 0 || *index >= *count) return std::nullopt;
    return Shard{*index, *count};
}

CLI::Validator one_of(std::vector<std::string> names) {
    return CLI::Validator(
        [names = std::move(names)](const std::string& text) -> std::string {
            if (std::ranges::find(names, text) != names.end()) return {};
            return fmt::format("expected {} or {}, found '{}'",
                               fmt::join(names.begin(), names.end() - 1, ", "), names.back(), text);
        },
        "");
}

CLI::Validator not_empty(std::string wanted) {
    return CLI::Validator(
        [wanted = std::move(wanted)](const std::string& text) -> std::string {
            return text.empty() ? fmt::format("expected {}, found an empty name", wanted) : "";
        },
        "");
}

// Seconds in "90", "90s", "45m", "2h", "1d" or "1:30:00" (hours, minutes, seconds).
std::optional<int64_t> parse_time(const std::string& text) {
    constexpr int64_t kMost = 1'000'000'000;
    int64_t seconds = 0;
    size_t begin = 0;
    for (size_t colon = 0, fields = 1; colon != std::string::npos; ++fields) {
        colon = text.find(':', begin);
        std::string field = text.substr(begin, colon - begin);
        int64_t unit = 1;
        if (fields == 1 && colon == std::string::npos && !field.empty()) {
            const size_t named = std::string_view("smhd").find(field.back());
            if (named != std::string_view::npos) field.pop_back();
            unit = named == std::string_view::npos ? 1 : std::array{1, 60, 3600, 86400}[named];
        }
        const std::optional<int64_t> value = parse_number<int64_t>(field);
        const bool in_range = value && *value >= 0 && *value <= kMost / unit;
        if (!in_range || fields > 3 || (fields > 1 && *value > 59)) return std::nullopt;
        seconds = seconds * 60 + *value * unit;
        begin = colon + 1;
    }
    return seconds <= kMost ? std::optional(seconds) : std::nullopt;
}

CLI::Option* add_time(CLI::App& app, const char* name, int64_t& value, int64_t low,
                      const char* help) {
    return app
        .add_option_function<std::string>(
            name, [&value](const std::string& text) { value = *parse_time(text); }, help)
        ->check(CLI::Validator(
            [low](const std::string& text) -> std::string {
                const std::optional<int64_t> time = parse_time(text);
                if (time && *time >= low) return {};
                return fmt::format(
                    "expected a time of at least {} s such as 90, 45m, 2h or 1:30:00, found '{}'",
                    low, text);
            },
            ""))
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

CLI::Option* add_shard(CLI::App& app, Shard& shard) {
    return app
        .add_option_function<std::string>(
            "--shard", [&shard](const std::string& text) { shard = *parse_shard(text); },
            "every N-th prompt, I from 0 to N - 1")
        ->check(CLI::Validator(
            [](const std::string& text) -> std::string {
                if (parse_shard(text)) return {};
                return fmt::format("expected I/N with 0 <= I < N, found '{}'", text);
            },
            ""))
        ->option_text("I/N");
}

// A flag for a record's option, with the range of io/option_table.h.
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

void add_generate(CLI::App& app, GenerateOptions& options) {
    const auto text = [&app](const char* name, std::string& value, const char* what,
                             const char* help, const char* value_name) {
        return app.add_option(name, value, help)->check(not_empty(what))->option_text(value_name);
    };
    const auto number = [&app](const char* name, auto& value, int64_t low, int64_t high,
                               const char* help) {
        return app.add_option(name, value, help)->check(integer(low, high))->option_text("N");
    };
    text("--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)", "DIR");
    text("--draft", options.draft, "a drafter's folder or none", "drafter (or DFLASH_DRAFT) [none]",
         "DIR");
    number("--k", options.k, 0, 63, "drafts per step (or DFLASH_K) [2 with a drafter]");
    app.add_option("--prompts", options.prompts, "prompts: HDF5, .jsonl or .txt")
        ->check(not_empty("a prompts file"))
        ->option_text("FILE...");
    app.add_option("--prompt", options.prompt_texts, "a prompt itself; may be repeated")
        ->check(not_empty("a text"))
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("TEXT");
    text("--out", options.out, "an output file", "generations, HDF5", "FILE");

    const std::string records = "Records";
    number("--max-new-tokens", options.record.max_new_tokens, 1, kMaxTokens,
           "new tokens per record [256]")
        ->group(records);
    number("--max-context", options.max_context, 2, kMaxTokens,
           "tokens per record [as the longest prompt needs]")
        ->group(records);
    app.add_flag("--ignore-eos", options.record.ignore_eos, "do not stop at an end token")
        ->group(records);
    number("--limit", options.limit, 1, kAny, "run the first N prompts only")->group(records);
    add_shard(app, options.shard)->group(records);
    app.add_flag("--no-text", options.no_text, "write tokens, no text")->group(records);
    app.add_flag("--strict", options.strict, "a bad record stops the job before it starts")
        ->group(records);
    app.add_flag("--fail-on-error", options.fail_on_error, "exit 1 when a record had an error")
        ->group(records);

    add_sampling(app, options);

    const std::string running = "Running";
    number("--max-seqs", options.max_seqs, 1, 4096, "records at once (or MAX_NUM_SEQS) [16]")
        ->group(running);
    number("--max-batched-tokens", options.max_batched_tokens, kTokenGrid, kMaxTokens,
           "prefill rows (or MAX_NUM_BATCHED_TOKENS) [7168]")
        ->group(running);
    number("--tp", options.tp, 1, kAny, "ranks that share one model: 1, 2 or 4 [all]")
        ->group(running);
    app.add_option("--backend", options.backend, "auto, cpu, cuda or check [auto]")
        ->check(one_of({"auto", "cpu", "cuda", "check"}))
        ->option_text("NAME")
        ->group(running);
    app.add_option("--comm", options.comm, "auto or mpi [auto]")
        ->check(one_of({"auto", "mpi"}))
        ->option_text("NAME")
        ->group(running);
    app.add_option_function<std::string>(
           "--draft-placement",
           [&options](const std::string& where) {
               options.draft_placement =
                   where == "sharded" ? DraftPlacement::sharded : DraftPlacement::replicated;
           },
           "sharded or replicated drafter [sharded]")
        ->check(one_of({"sharded", "replicated"}))
        ->option_text("WHERE")
        ->group(running);
    app.add_flag("--eager", options.eager, "no CUDA graphs (or CUDA_GRAPHS=0)")->group(running);
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

void add_inspect(CLI::App& app, InspectOptions& options) {
    app.add_option("paths", options.paths, "HDF5 files of ours, checkpoint folders")
        ->check(not_empty("a file or folder"))
        ->option_text("PATH...");
    app.add_option("--limit", options.limit, "records shown of each file [5]")
        ->check(integer(0, kAny))
        ->option_text("N");
}

void add_pack(CLI::App& app, PackOptions& options) {
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

void add_unpack(CLI::App& app, UnpackOptions& options) {
    app.add_option("inputs", options.inputs, "generations, HDF5")
        ->check(not_empty("a file"))
        ->option_text("FILE...");
    app.add_option("--out", options.out, "JSON lines; - is standard output [-]")
        ->check(not_empty("an output file"))
        ->option_text("FILE");
    app.add_option("--format", options.format, "jsonl, or openai: batch output lines [jsonl]")
        ->check(one_of({"jsonl", "openai"}))
        ->option_text("NAME");
    app.add_option("--limit", options.limit, "unpack the first N records only")
        ->check(integer(1, kAny))
        ->option_text("N");
    add_output_exists(app, options.output_exists);
}

void need(bool given, const char* flag, const char* wanted) {
    if (!given) fail(fmt::format("{}: expected {}, found nothing", flag, wanted));
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

// The parser of one invocation and the structs it fills.
class Parser {
  public:
    explicit Parser(std::span<const std::string_view> offered) : app_("", "quadrille") {
        app_.description(
            "Batch generation with GLM-5.3-Flash (EXL3) and DFlash2 speculative decoding:\n"
            "mpirun -n 4 quadrille generate --target DIR --prompts F.h5 --out F.h5");
        app_.get_formatter()->column_width(28);
        app_.set_help_flag("--help,-h", "this text");
        app_.add_flag("--version", show_version_, "version and commit");
        for (const std::string_view name : offered) add(std::string(name));
        app_.require_subcommand(0, 1);
    }

    Command parse(const Invocation& invocation) {
        std::vector<std::string> arguments = invocation.arguments;
        if (arguments.empty()) return ShowText{help(), 2};
        take_environment(arguments, invocation.environment);
        std::ranges::reverse(arguments);  // CLI11 takes them from the back
        try {
            app_.parse(std::move(arguments));
        } catch (const CLI::CallForHelp&) {
            return ShowText{help(), 0};
        } catch (const CLI::ParseError& error) {
            fail(explain(error));
        }
        if (show_version_) return ShowText{version_text(), 0};
        return chosen(invocation);
    }

  private:
    void add(const std::string& name) {
        const auto subcommand = [&](const char* description) -> CLI::App& {
            return *app_.add_subcommand(name, description);
        };
        if (name == "generate") {
            add_generate(subcommand("Generate text for the prompts of HDF5 files."), generate_);
        } else if (name == "inspect") {
            add_inspect(subcommand("Say what is in a file or a checkpoint."), inspect_);
        } else if (name == "pack") {
            add_pack(subcommand("Write text or JSON lines as a prompts file."), pack_);
        } else if (name == "unpack") {
            add_unpack(subcommand("Write generations as JSON lines."), unpack_);
        } else {
            require(false, "a subcommand of the parser");
        }
    }

    // Appends a flag for each variable whose flag the subcommand has and the user did not give.
    void take_environment(std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
        const auto named = app_.get_subcommands(
            [&](const CLI::App* app) { return app->get_name() == arguments.front(); });
        if (named.empty()) return;
        const CLI::App* const subcommand = named.front();
        const std::vector<std::string> given = arguments;
        const auto is_given = [&given](const std::string& flag) {
            return std::ranges::any_of(given, [&flag](const std::string& argument) {
                return argument == flag || argument.starts_with(flag + "=");
            });
        };
        for (const std::string& entry : environment) {
            const size_t equals = entry.find('=');
            const std::string variable = entry.substr(0, equals);
            const std::string value = entry.substr(equals + 1);
            if (value.empty()) continue;
            for (const auto& [name, flag] : kFromEnvironment) {
                if (name != variable || subcommand->get_option_no_throw(flag) == nullptr) continue;
                if (is_given(flag)) continue;
                arguments.push_back(fmt::format("{}={}", flag, value));
                renamed_.emplace_back(flag, name);
            }
            if (variable == kCudaGraphs && subcommand->get_option_no_throw("--eager") != nullptr) {
                if (value != "0" && value != "1") {
                    fail(fmt::format("{}: expected 0 or 1, found '{}'", kCudaGraphs, value));
                }
                if (value == "0" && !is_given("--eager")) arguments.emplace_back("--eager");
            }
        }
    }

    // One blank line between groups where CLI11 leaves two.
    std::string help() const {
        const std::vector<CLI::App*> chosen = app_.get_subcommands();
        const std::string text = chosen.empty() ? app_.help() : chosen.front()->help();
        std::string result;
        for (const char letter : text) {
            if (letter != '\n' || !result.ends_with("\n\n")) result.push_back(letter);
        }
        while (result.ends_with("\n\n")) result.pop_back();
        return result;
    }

    static std::string version_text() {
        return fmt::format("quadrille {}{}\n", version(),
                           commit().empty() ? "" : fmt::format(" ({})", commit()));
    }

    // Some of CLI11's texts are replaced, the others already name flag and value.
    std::string explain(const CLI::ParseError& error) const {
        std::string message = error.what();
        if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
            const std::vector<std::string> extra = app_.remaining(true);
            const bool is_command = app_.get_subcommands().empty();
            message = fmt::format("unknown {} '{}'", is_command ? "subcommand" : "argument",
                                  extra.empty() ? message : extra.front());
        } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
            std::ranges::replace(message, '\n', ' ');
        }
        for (const auto& [flag, variable] : renamed_) {
            if (message.starts_with(flag + ":")) message.replace(0, flag.size(), variable);
        }
        return fmt::format("{} (see quadrille {}--help)", message, command_name());
    }

    static std::string value_of(const Invocation& invocation, const std::string& name) {
        for (const std::string& entry : invocation.environment) {
            if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
        }
        return "";
    }

    std::string command_name() const {
        const std::vector<CLI::App*> chosen = app_.get_subcommands();
        return chosen.empty() ? "" : chosen.front()->get_name() + " ";
    }

    Command chosen(const Invocation& invocation) {
        const std::vector<CLI::App*> subcommands = app_.get_subcommands();
        if (subcommands.empty()) return ShowText{help(), 2};
        const std::string name = subcommands.front()->get_name();
        const auto finished = [](auto& options) -> Command {
            finish(options);
            return std::move(options);
        };
        if (name == "inspect") return finished(inspect_);
        if (name == "pack") return finished(pack_);
        if (name == "unpack") return finished(unpack_);
        generate_.slurm_job = value_of(invocation, kSlurmJob);
        const std::string locking = value_of(invocation, kLocking);
        if (locking == "FALSE" || locking == "0") generate_.locking = Locking::off;
        if (locking == "BEST_EFFORT") generate_.locking = Locking::best_effort;
        generate_.command_line = fmt::format("quadrille {}", fmt::join(invocation.arguments, " "));
        return finished(generate_);
    }

    CLI::App app_;
    bool show_version_ = false;
    GenerateOptions generate_;
    InspectOptions inspect_;
    PackOptions pack_;
    UnpackOptions unpack_;
    std::vector<std::pair<std::string, std::string>> renamed_;  // flag, variable that filled it
};

}  // namespace

Invocation read_invocation(int argc, const char* const* argv) {
    Invocation invocation;
    for (int i = 1; i < argc; ++i) invocation.arguments.emplace_back(argv[i]);
    const auto take = [&invocation](const char* name) {
        const char* const value = std::getenv(name);
        if (value != nullptr) invocation.environment.push_back(fmt::format("{}={}", name, value));
    };
    for (const FromEnvironment& entry : kFromEnvironment) take(entry.variable);
    take(kCudaGraphs);
    take(kSlurmJob);
    take(kLocking);
    return invocation;
}

Command parse_command(const Invocation& invocation, std::span<const std::string_view> offered) {
    return Parser(offered).parse(invocation);
}

}  // namespace quadrille
