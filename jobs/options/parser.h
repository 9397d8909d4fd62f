// SPDX-License-Identifier: Apache-2.0
// The command line. Parsing is a pure function of the arguments and of a few environment values, so
// that every rank can run it on rank 0's and come to the same result or error.
#pragma once

#include "jobs/options/job.h"

#include <memory>
#include <span>
#include <string>
#include <variant>

namespace quadrille {

// Help or version: text for standard output and the exit code.
struct ShowText {
    std::string text;
    int code = 0;
};

struct ChosenJob {
    std::string name;
    bool on_ranks = false;
    std::unique_ptr<Job> job;  // with its options filled
};

using Command = std::variant<ShowText, ChosenJob>;

// Throws Error{usage} that names the flag (or the environment variable), what was expected and what
// was found.
Command parse_command(const Invocation& invocation, std::span<const JobRow> table);

}  // namespace quadrille
