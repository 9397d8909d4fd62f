// SPDX-License-Identifier: Apache-2.0
// What a job knows of its records: prompts with their options as read, generations as written.
// Field meanings, defaults and precedence: io/FORMAT.md.
#pragma once

#include <compare>
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
    int64_t samples = 1;     // generations of the prompt
    int64_t score_from = 1;  // the first token that `score` scores; no other job takes it
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_text;
};

// One record's id, and the `id` column of a file: integers, strings, or absent.
using RecordId = std::variant<std::monostate, int64_t, std::string>;
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

// Statistics of one record's verify steps (io/FORMAT.md, /acceptance).
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
    int64_t prompt_index = 0;     // in its prompt file
    int32_t source = 0;           // which prompt file
    int32_t sample = 0;           // which of several samples of one prompt
    int64_t prompt_tokens = 0;    // -1: the file does not tell
    RecordId id;                  // filled in by the result writer
    bool completion = false;      // asked for as a completion of OpenAI's, not as a chat
    std::string kind;             // of its prompt, in whole files; "": none
    std::vector<int32_t> tokens;  // the end or stop token that ended the record included
    Status status = Status::ok;
    FinishReason finish_reason = FinishReason::none;
    std::string error;
    std::string text;       // without the end token, cut where a stop string begins
    int64_t text_end = -1;  // bytes of the tokens' text before a stop string; -1: none was found
    Acceptance acceptance;
    // Natural log of the model's own softmax; empty unless asked for. N alternatives a token.
    std::vector<float> chosen_logprobs;  // (tokens)
    std::vector<int32_t> top_ids;        // (tokens, N)
    std::vector<float> top_logprobs;     // (tokens, N)
    bool is_greedy = true;               // of `score`: every token is the most likely one
    // Seconds from its admission to its first token of this start, and to its end; 0: it never
    // ran. No file has them.
    double first_seconds = 0;
    double seconds = 0;
};

// One record of prompts.h5. `error` is set for a record-level problem (empty, bad UTF-8, token out
// of range…): such a record is not run, its error is written, the job goes on.
struct Prompt {
    int64_t index = 0;   // in the file
    int32_t source = 0;  // which prompt file
    int32_t sample = 0;  // which of several samples of the prompt
    std::vector<int32_t> tokens;
    std::string text;  // of a text file, before the tokenizer; empty for token files
    RecordOptions options;
    std::string error;
    // What an earlier start emitted before it was stopped, with its statistics: the record goes on
    // behind it. No tokens: nothing.
    Generation kept;
};

// Names a generation within a run; the order is that of the input.
struct RecordKey {
    int32_t source = 0;
    int64_t prompt_index = 0;
    int32_t sample = 0;

    friend auto operator<=>(const RecordKey&, const RecordKey&) = default;
};

inline RecordKey key_of(const Generation& generation) {
    return {generation.source, generation.prompt_index, generation.sample};
}
inline RecordKey key_of(const Prompt& prompt) {
    return {prompt.source, prompt.index, prompt.sample};
}

}  // namespace quadrille
