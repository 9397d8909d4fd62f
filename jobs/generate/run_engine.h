// SPDX-License-Identifier: Apache-2.0
// What turns the records of a run into results: an Engine, or a Scorer for `score`.
#pragma once

#include "io/text/tokenizer.h"
#include "jobs/common/model_session.h"
#include "jobs/generate/generate_options.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/last_words.h"
#include "runtime/record_runner.h"

#include <cstdint>
#include <memory>

namespace quadrille {

struct RunnerChoice {
    const Tokenizer* tokenizer = nullptr;  // for stop strings
    int64_t known_tokens = 0;
    int32_t k = 0;
    ModelLimits limits;
    LastWords& last_words;  // hears which records run
};

// Over loaded models; steps that can be recorded are recorded. Everything outlives the runner.
std::unique_ptr<RecordRunner> make_runner(ModelSession& session, Communicator& comm,
                                          const GenerateOptions& options,
                                          const RunnerChoice& choice);

}  // namespace quadrille
