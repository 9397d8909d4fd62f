// SPDX-License-Identifier: Apache-2.0
// Prompts from text files: a prompt a line, or a JSON object a line: `text`, `tokens` or `messages`
// (which go through the chat template) with any of the option columns of prompts.h5 under their
// own names, or a request of an OpenAI batch file.
#pragma once

#include "io/prompts/prompt_writer.h"
#include "io/text/jsonl.h"
#include "io/text/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace quadrille {

enum class LineFormat : uint8_t { text, jsonl };

// By suffix: .jsonl, .ndjson and .json (in any case) are JSON lines.
LineFormat line_format_of(const std::filesystem::path& file);

// Prompt and continuation as the tokens of one text, from which on score_from says. White space at
// the end of the prompt belongs to the continuation, whose tokens are those behind the prompt's, as
// evaluation harnesses have it. Sets PromptRecord::error where nothing is left on either side.
void join_continuation(PromptRecord& record, const Tokenizer& tokenizer);

class PromptLines {
  public:
    PromptLines(const std::filesystem::path& file, LineFormat format);

    // The next record; false at the end. Blank lines are passed over. Error{input} naming file,
    // line, field, expected and found: a line that is no object, an id, and, in our own names, a
    // field of another type. A value out of its range, and all that an OpenAI request asks for in
    // vain, is PromptRecord::error instead.
    bool next(PromptRecord& record);
    std::string place() const { return lines_.place(); }  // "FILE:LINE" of that record

    int64_t blank_lines() const { return blank_lines_; }
    // Keys that mean nothing here, with the number of lines that have them.
    const std::map<std::string, int64_t>& unknown_keys() const { return unknown_keys_; }

  private:
    void read_object(PromptRecord& record);
    void refuse_spread_json() const;

    LineReader lines_;
    LineFormat format_;
    int64_t blank_lines_ = 0;
    std::map<std::string, int64_t> unknown_keys_;
};

}  // namespace quadrille
