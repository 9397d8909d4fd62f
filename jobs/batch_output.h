// SPDX-License-Identifier: Apache-2.0
// One line of an OpenAI batch output file, as clients of that interface read it back.
#pragma once

#include "io/records.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace quadrille {

// `samples`: the samples of one prompt, in order; their texts become the choices. custom_id is the
// record's id, or "record-INDEX". A prompt whose samples all failed has a null response and its
// error instead. usage holds completion_tokens only: a generations file does not know the prompt's
// length. eos and stop become "stop", length and context "length".
nlohmann::ordered_json to_batch_output(const std::vector<Generation>& samples,
                                       const std::string& model);

}  // namespace quadrille
