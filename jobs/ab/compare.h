// SPDX-License-Identifier: Apache-2.0
// quadrille compare: what several runs made of the same prompts, whatever their models and options:
// equal records, the first token that differs, accept length by position, tokens/s, how records
// ended.
#pragma once

#include "jobs/ab/ab_options.h"

namespace quadrille {

// The options of ab without kinds. Error{input}: the files are of other prompts or samples.
struct CompareOptions : AbOptions {};

void add_flags(CLI::App& app, CompareOptions& options);
void finish(CompareOptions& options, const Invocation& invocation);
int run_compare(const CompareOptions& options);

}  // namespace quadrille
