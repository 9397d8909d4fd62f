// SPDX-License-Identifier: Apache-2.0
// The command line: CLI11, whose messages are replaced where they do not say what was expected and
// what was found. Environment values are turned into flags that were not given, so that they pass
// the same checks; a message then names the variable.
#include "jobs/options/parser.h"

#include "jobs/common/version.h"
#include "jobs/options/environment.h"
#include "jobs/options/help_text.h"
#include "jobs/options/option_checks.h"
#include "kernels/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

// The parser of one invocation and the jobs whose options it fills.
class Parser {
  public:
    explicit Parser(std::span<const JobRow> table) : app_("", "quadrille"), table_(table) {
        app_.description(
            "Batch generation with GLM-5.3-Flash (EXL3) and DFlash2 speculative decoding:\n"
            "mpirun -n 4 quadrille generate --target DIR --prompts F.h5 --out F.h5");
        app_.get_formatter()->column_width(28);
        app_.set_help_flag("--help,-h", "this text");
        app_.add_flag("--version", show_version_, "version and commit");
        for (const JobRow& row : table) {
            jobs_.push_back({row.name, row.on_ranks, row.make()});
            jobs_.back().job->declare(*app_.add_subcommand(row.name, row.help));
        }
        app_.require_subcommand(0, 1);
    }

    Command parse(const Invocation& invocation) {
        std::vector<std::string> arguments = invocation.arguments;
        if (arguments.empty()) return ShowText{help(), static_cast<int>(ErrorKind::usage)};
        take_environment(arguments, invocation.environment);
        take_help_topic(arguments);
        std::ranges::reverse(arguments);  // CLI11 takes them from the back
        try {
            app_.parse(std::move(arguments));
        } catch (const CLI::CallForHelp&) {
            return ShowText{help(), 0};
        } catch (const CLI::ParseError& error) {
            fail_usage(explain(error));
        }
        if (show_version_) return ShowText{version_text(), 0};
        return chosen(invocation);
    }

  private:
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
                    fail_usage(fmt::format("{}: expected 0 or 1, found '{}'", kCudaGraphs, value));
                }
                if (value == "0" && !is_given("--eager")) arguments.emplace_back("--eager");
            }
        }
    }

    // "--help TOPIC": a group of options of the job, or all of them.
    void take_help_topic(std::vector<std::string>& arguments) {
        const auto asked = std::ranges::find_if(arguments, [](const std::string& argument) {
            return argument == "--help" || argument == "-h";
        });
        const auto named = app_.get_subcommands(
            [&](const CLI::App* app) { return app->get_name() == arguments.front(); });
        if (asked == arguments.end() || asked + 1 == arguments.end() || named.empty()) return;
        const std::vector<std::string> topics = help_topics(named.front()->help());
        const std::string& topic = *(asked + 1);
        if (topic.starts_with("-")) return;
        if (topic != "all" && std::ranges::find(topics, topic) == topics.end()) {
            fail_usage(fmt::format(
                "--help: expected one of {}, found '{}'",
                topics.empty() ? "all" : fmt::format("{}, all", fmt::join(topics, ", ")), topic));
        }
        topic_ = topic;
        arguments.erase(asked + 1);
    }

    // One blank line between groups where CLI11 leaves two.
    std::string help() const {
        const std::vector<CLI::App*> chosen = app_.get_subcommands();
        if (!chosen.empty()) {
            const std::string name = chosen.front()->get_name();
            const auto row = std::ranges::find(table_, name, &JobRow::name);
            return help_text({.job = name,
                              .whole = chosen.front()->help(),
                              .required = row->required,
                              .example = row->example},
                             topic_);
        }
        const std::string text = app_.help();
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

    std::string command_name() const {
        const std::vector<CLI::App*> chosen = app_.get_subcommands();
        return chosen.empty() ? "" : chosen.front()->get_name() + " ";
    }

    Command chosen(const Invocation& invocation) {
        const std::vector<CLI::App*> subcommands = app_.get_subcommands();
        if (subcommands.empty()) return ShowText{help(), static_cast<int>(ErrorKind::usage)};
        const std::string name = subcommands.front()->get_name();
        ChosenJob& chosen = *std::ranges::find(jobs_, name, &ChosenJob::name);
        chosen.job->settle(invocation);
        return std::move(chosen);
    }

    CLI::App app_;
    std::span<const JobRow> table_;
    bool show_version_ = false;
    std::string topic_;  // of --help
    std::vector<ChosenJob> jobs_;
    std::vector<std::pair<std::string, std::string>> renamed_;  // flag, variable that filled it
};

}  // namespace

Command parse_command(const Invocation& invocation, std::span<const JobRow> table) {
    return Parser(table).parse(invocation);
}

}  // namespace quadrille
