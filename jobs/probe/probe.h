// SPDX-License-Identifier: Apache-2.0
// quadrille probe: how much of the next token each row of a capture tells through the target's own
// final norm and head; and whether the capture is whole: final hidden rows must give the tokens.
#pragma once

#include "jobs/options/job.h"
#include "jobs/probe/probe_options.h"

namespace quadrille {

// Error{input}: a greedy capture whose final hidden rows do not give its own tokens.
int run_probe(const ProbeOptions& options, const RankStart& start);

}  // namespace quadrille
