// SPDX-License-Identifier: Apache-2.0
// Lines of an OpenAI batch output file, as clients of that interface read them back.
#pragma once

#include "io/records.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

class Tokenizer;

// What all lines of a file share.
struct BatchOutput {
    std::string model;
    int64_t created = 0;                   // seconds since 1970, UTC; 0: not known
    const Tokenizer* tokenizer = nullptr;  // without one logprobs are null
};

// The record's id, or "record-INDEX" ("record-SOURCE-INDEX" in a further prompt file) where it has
// none.
std::string custom_id(const Generation& generation);

// `samples`: the samples of one prompt, in order; their texts become the choices of a chat
// completion, or of a completion where that was asked for. A prompt whose samples all failed has a
// null response and its error instead. eos and stop become "stop", length and context "length".
// logprobs has an entry for every token, the end token included. usage lacks the prompt where the
// file does not tell its length.
nlohmann::ordered_json to_batch_output(const std::vector<Generation>& samples,
                                       const BatchOutput& output);

}  // namespace quadrille
