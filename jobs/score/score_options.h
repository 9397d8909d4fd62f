// SPDX-License-Identifier: Apache-2.0
// What score is asked to do, and its flags: those of generate that do not concern what is chosen.
#pragma once

#include "jobs/generate/generate_options.h"

namespace quadrille {

struct ScoreOptions : GenerateOptions {};

void add_flags(CLI::App& app, ScoreOptions& options);
void finish(ScoreOptions& options, const Invocation& invocation);

}  // namespace quadrille
