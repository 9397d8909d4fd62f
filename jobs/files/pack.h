// SPDX-License-Identifier: Apache-2.0
// pack: text lines and JSON lines to prompts.h5.
#pragma once

#include "jobs/files/files_options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct PackSummary {
    int64_t records = 0;
    bool text = true;                  // false: tokens
    std::vector<std::string> columns;  // options that records set, id included
    std::vector<std::string> notices;
};

// Everything is read and checked before anything is written. Error{input} naming file and line;
// Error{usage}: OUT is there, texts and tokens are mixed without a tokenizer; Error{io}.
PackSummary pack(const PackOptions& options);

// The same, with notices on standard error and a line on standard output. The exit code.
int run_pack(const PackOptions& options);

}  // namespace quadrille
