// SPDX-License-Identifier: Apache-2.0
// Flags that several jobs have, and kinds of flags.
#pragma once

#include "jobs/options/option_checks.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace quadrille {

// --output-exists; `resumable`: a job that can tell whether OUT is what it would make, and skip it.
CLI::Option* add_output_exists(CLI::App& app, OutputExists& value, bool resumable = false);

// A text that may not be empty: `what` says what is expected, `value_name` stands in the help.
CLI::Option* add_text(CLI::App& app, const char* name, std::string& value, const char* what,
                      const char* help, const char* value_name);

template <class T>
CLI::Option* add_number(CLI::App& app, const char* name, T& value, int64_t low, int64_t high,
                        const char* help) {
    return app.add_option(name, value, help)->check(integer(low, high))->option_text("N");
}

// Seconds, as parse_time takes them.
CLI::Option* add_time(CLI::App& app, const char* name, int64_t& value, int64_t low,
                      const char* help);

}  // namespace quadrille
