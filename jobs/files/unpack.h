// SPDX-License-Identifier: Apache-2.0
// unpack: generations files to JSON lines, one object a record.
#pragma once

#include "io/records.h"
#include "jobs/files/files_options.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct GenerationLayout;

// {"index", "source" and "sample" (where the file has them), "id" (likewise), "status",
// "finish_reason", "error" (null: none), "tokens", "text" (where the file has it), "acceptance",
// "logprobs" (likewise)}; NaN becomes null.
nlohmann::ordered_json to_json(const Generation& generation, const GenerationLayout& layout);

// Every input is opened and checked before the first line is written. With several inputs each
// object starts with "file". Error{usage}: OUT is there; Error{input}: an input is no complete
// generations file, or its tokenizer is not that of --target; Error{io}. Returns the number of
// records written; appends to `notices` what a reader of the lines should know.
int64_t unpack(const UnpackOptions& options, std::vector<std::string>& notices);

// The same; the exit code.
int run_unpack(const UnpackOptions& options);

}  // namespace quadrille
