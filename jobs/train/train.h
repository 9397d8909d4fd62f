// SPDX-License-Identifier: Apache-2.0
// quadrille train: a DFlash2 drafter trained on a capture of the target that it serves. Ranks share
// the parts of each step; their number changes no bit.
#pragma once

#include "jobs/options/job.h"
#include "jobs/train/train_options.h"

namespace quadrille {

int run_train(const TrainOptions& options, const RankStart& start);

}  // namespace quadrille
