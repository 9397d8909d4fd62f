// SPDX-License-Identifier: Apache-2.0
// score: log-probabilities of tokens that records already have, for harnesses that rank given
// continuations. It runs as generate does, in groups of ranks, in parts, resumable; a Scorer takes
// the Engine's place (io/FORMAT.md, kind `scores`).
#pragma once

#include "jobs/options/job.h"
#include "jobs/score/score_options.h"

namespace quadrille {

int run_score(const ScoreOptions& options, const RankStart& start);

}  // namespace quadrille
