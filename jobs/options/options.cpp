// SPDX-License-Identifier: Apache-2.0
// The command line: CLI11, whose messages are replaced where they do not say what was expected and
// what was found. Environment values are turned into flags that were not given, so that they pass
// the same checks; a message then names the variable.
#include "jobs/options/options.h"

#include "jobs/options/option_flags.h"
#include "kernels/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace quadrille {
namespace {

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
            add_flags(subcommand("Generate text for the prompts of HDF5 files."), generate_);
        } else if (name == "bench") {
            add_flags(subcommand("Measure speed, next to what the machine could reach."), bench_);
        } else if (name == "inspect") {
            add_flags(subcommand("Say what is in a file or a checkpoint."), inspect_);
        } else if (name == "pack") {
            add_flags(subcommand("Write text or JSON lines as a prompts file."), pack_);
        } else if (name == "unpack") {
            add_flags(subcommand("Write generations as JSON lines."), unpack_);
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
        } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
            // Only of switches: values have validators. "Could not convert: --flag = value".
            const size_t flag = message.find("--");
            const size_t equals = message.find(" = ");
            if (flag < equals && equals != std::string::npos) {
                message =
                    fmt::format("{}: expected true or false, found '{}'",
                                message.substr(flag, equals - flag), message.substr(equals + 3));
            }
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
        if (name == "bench") return finished(bench_);
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
    BenchOptions bench_;
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
