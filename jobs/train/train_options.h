// SPDX-License-Identifier: Apache-2.0
// What train is asked to do, and its flags.
#pragma once

#include "drafter/train/trainer.h"
#include "jobs/options/job.h"
#include "jobs/options/model_options.h"

#include <cstdint>
#include <string>

namespace quadrille {

struct TrainOptions : ModelOptions {
    std::string capture;  // capture.h5
    std::string out;      // folder of the new drafter
    TrainerOptions trainer;
    DataOptions data;
    int64_t accumulate = 1;
    int64_t epochs = 4;
    int64_t steps = 0;       // 0: as the epochs need
    double rate = 0;         // 0: as the stage
    double warm_up = 0.04;   // of the steps
    double last_rate = 0.1;  // of the rate, at the last step
    int64_t validate_every = 50;
    int64_t save_every = 50;
    bool overwrite = false;
};

void add_flags(CLI::App& app, TrainOptions& options);
void finish(TrainOptions& options, const Invocation& invocation);

}  // namespace quadrille
