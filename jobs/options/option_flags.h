// SPDX-License-Identifier: Apache-2.0
// The flags of each subcommand, and what is settled once all are read: what must be given, defaults
// that depend on other options, values that do not go together (Error{usage}).
#pragma once

#include "jobs/options/options.h"

#include <CLI/CLI.hpp>

namespace quadrille {

void add_flags(CLI::App& app, GenerateOptions& options);
void add_flags(CLI::App& app, BenchOptions& options);
void add_flags(CLI::App& app, InspectOptions& options);
void add_flags(CLI::App& app, PackOptions& options);
void add_flags(CLI::App& app, UnpackOptions& options);

void finish(GenerateOptions& options);
void finish(BenchOptions& options);
void finish(InspectOptions& options);
void finish(PackOptions& options);
void finish(UnpackOptions& options);

// --comm, --draft-placement and --eager, of the jobs that run a model (GenerateOptions and
// BenchOptions).
template <class Options>
void add_step_flags(CLI::App& app, Options& options, const std::string& group);

}  // namespace quadrille
