// SPDX-License-Identifier: Apache-2.0
// A line of an OpenAI batch file, {"custom_id", "method", "url", "body"}, as a record. Requests of
// /v1/chat/completions and /v1/completions with one prompt; what a request asks for and cannot get
// (penalties, formats, fields that mean nothing here) is an error, not ignored.
#pragma once

#include "io/prompts/prompt_writer.h"
#include "io/text/json.h"

#include <string_view>

namespace quadrille {

bool is_batch_line(const JsonObject& line);  // has custom_id or body, and no prompt of our own form

// All but the id. `text` is what `line` was parsed from.
// Error{input} "PLACE: body.field: expected …, found …".
void read_batch_line(const JsonObject& line, std::string_view text, PromptRecord& record);

}  // namespace quadrille
