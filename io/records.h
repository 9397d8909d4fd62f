// SPDX-License-Identifier: Apache-2.0
// What a job knows of its records: prompts with their options as read, generations as written.
// Field meanings, defaults and precedence: docs/design.md §5 and io/FORMAT.md.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace quadrille {

// Sampling and limits of one record. A value that a column leaves at its default marker (-1, NaN)
// is filled from the attribute of /prompts, then the flag, then the built-in default below.
struct RecordOptions {
    int64_t max_new_tokens = 256;
    double temperature = 0.0;  // 0: greedy
    double top_p = 1.0;
    int64_t top_k = 0;  // 0: off
    double min_p = 0.0;
    double repetition_penalty = 1.0;
    int64_t seed = -1;      // -1: derived from the run's seed and the record's index
    int64_t logprobs = -1;  // -1: none; 0: chosen only; n: and the n best
    bool ignore_eos = false;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_text;
};

// One record of prompts.h5. `error` is set for a record-level problem (empty, bad UTF-8, token out
// of range…): such a record is not run, its error is written, the job goes on.
struct Prompt {
    int64_t index = 0;  // in the file
    std::vector<int32_t> tokens;
    std::string text;  // of a text file, before the tokenizer; empty for token files
    RecordOptions options;
    std::string error;
};

// `id` column: integers, strings, or absent.
using Ids = std::variant<std::monostate, std::vector<int64_t>, std::vector<std::string>>;

enum class Status : uint8_t { ok = 0, error = 1, cancelled = 2 };
enum class FinishReason : uint8_t {
    none = 0,
    eos = 1,
    stop = 2,
    length = 3,
    context = 4,
    error = 5
};

// Statistics of one record's verify steps (docs/design.md §5, /acceptance/).
struct Acceptance {
    int64_t steps = 0;
    int64_t drafted = 0;
    int64_t accepted = 0;
    int64_t emitted = 0;
    std::vector<int64_t> by_position;  // (K)
    std::vector<int64_t> histogram;    // (K + 1)
    std::vector<uint8_t> trace;        // accepted drafts of every step
};

struct Generation {
    int64_t prompt_index = 0;
    std::vector<int32_t> tokens;  // the end or stop token that ended the record included
    Status status = Status::ok;
    FinishReason finish_reason = FinishReason::none;
    std::string error;
    std::string text;
    Acceptance acceptance;
};

}  // namespace quadrille
