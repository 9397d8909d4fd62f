// SPDX-License-Identifier: Apache-2.0
// merge: the generations of all shards of one prompts file as the file that one run would have
// made.
#pragma once

#include "io/results/assembly.h"
#include "jobs/files/files_options.h"

namespace quadrille {

// Error{input}: a file is no finished generations file, does not say of which shard it is, differs
// from the first in what decides a token, or a shard or record is missing or there twice. Nothing
// is written then.
ResultSummary merge(const MergeOptions& options);
int run_merge(const MergeOptions& options);

}  // namespace quadrille
