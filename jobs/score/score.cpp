// SPDX-License-Identifier: Apache-2.0
#include "jobs/score/score.h"

#include "jobs/generate/generate.h"

namespace quadrille {

int run_score(const ScoreOptions& options, const RankStart& start) {
    return run_generate(options, start);
}

}  // namespace quadrille
