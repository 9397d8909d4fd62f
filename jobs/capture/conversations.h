// SPDX-License-Identifier: Apache-2.0
// The conversations of a capture: each prompt of a run with what was generated for it.
#pragma once

#include "io/capture/capture_writer.h"
#include "io/checkpoint/model_config.h"
#include "io/h5/h5.h"
#include "jobs/generate/generate_options.h"

#include <cstdint>

namespace quadrille {

struct Conversations {
    CaptureText text;
    bool greedy = true;       // no record drew its tokens
    int64_t left_out = 0;     // records with an error or without a token
    int64_t longest = 0;      // tokens
    h5::Attributes identity;  // fingerprint of the generations
};

// Reads the prompts of `options` and the generations file options.out. Error{input}: it holds other
// records, or none to capture. One rank reads.
Conversations read_conversations(const GenerateOptions& options, const ModelConfig& config);

}  // namespace quadrille
