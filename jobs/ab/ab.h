// SPDX-License-Identifier: Apache-2.0
// quadrille ab: which of several drafters is better, from the generations that each of them helped
// to make of the same prompts: accept length by position and kind with intervals, tokens/s.
#pragma once

#include "jobs/ab/ab_options.h"

namespace quadrille {

// Error{input}: the files are of other prompts, targets, options or K than each other.
int run_ab(const AbOptions& options);

}  // namespace quadrille
