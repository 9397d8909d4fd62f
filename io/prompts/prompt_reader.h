// SPDX-License-Identifier: Apache-2.0
// Reads prompts.h5 (io/FORMAT.md) in slices. Opening checks everything that concerns the whole
// file and throws Error{input} (Error{io} where the file cannot be opened); what concerns one
// record is its Prompt::error. In memory: the offsets, the ids and the slice asked for.
#pragma once

#include "io/h5/h5.h"
#include "io/prompts/prompt_options.h"
#include "io/records.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

struct PromptLimits {
    int64_t vocab_size = 0;  // tokens are 0 … vocab_size - 1; 0: any int32 that is not negative
    int64_t context = 0;     // a prompt of this many tokens or more is an error; 0: any length
};

// Sets Prompt::error for no token, a token out of range, or a prompt that fills the context. For
// tokens that come from a file or, later, from a tokenizer.
void check_tokens(Prompt& prompt, const PromptLimits& limits);

class PromptReader {
  public:
    // `defaults`: the flags over the built-in defaults. `honoured`: option names (columns) that the
    // job obeys; the others are errors unless at their default.
    PromptReader(const std::filesystem::path& path, const RecordOptions& defaults,
                 const std::set<std::string>& honoured = PromptOptions::names());

    const std::filesystem::path& path() const { return path_; }
    int64_t record_count() const { return records_; }
    bool is_text() const { return text_.has_value(); }
    const Ids& ids() const { return ids_; }
    // Per record: asked for as a completion of OpenAI's; empty: none is.
    const std::vector<bool>& completions() const { return completions_; }
    // To be shown once: unknown datasets, a missing version.
    const std::vector<std::string>& notices() const { return notices_; }

    // Names the prompts and options in fingerprints: a digest of every known dataset and attribute.
    std::string digest() const;

    // Token files, from the offsets alone; 0 for text files.
    int64_t prompt_tokens(int64_t record) const;
    int64_t longest_prompt() const;
    // The largest max_new_tokens of a record; largest sum of it, 1 at least, and the prompt's
    // tokens.
    int64_t largest_max_new_tokens() const { return largest_max_new_tokens_; }
    int64_t largest_total() const { return largest_total_; }
    const PromptOptions& options() const { return *options_; }

    // Records first … first + count - 1, in order. A text file's tokens are left to the caller
    // (check_tokens comes after the tokenizer then); a record longer than the context is not read.
    std::vector<Prompt> read(int64_t first, int64_t count, const PromptLimits& limits = {}) const;

  private:
    void open_prompts(const h5::Group& prompts);
    void read_ids(const h5::Group& prompts);
    void read_remarks(const h5::Group& prompts);
    void note_unknown(const h5::Group& prompts);
    void measure();
    void read_tokens(std::vector<Prompt>& prompts, const PromptLimits& limits) const;
    void read_text(std::vector<Prompt>& prompts) const;

    std::filesystem::path path_;
    std::vector<std::string> notices_;
    h5::File file_;
    std::optional<h5::Dataset> tokens_;
    std::optional<h5::Dataset> text_;
    std::vector<int64_t> offsets_;  // (records + 1) of a token file
    int64_t records_ = 0;
    Ids ids_;
    std::vector<bool> completions_;
    std::optional<h5::Dataset> errors_;
    std::optional<PromptOptions> options_;
    int64_t largest_max_new_tokens_ = 0;
    int64_t largest_total_ = 0;
};

}  // namespace quadrille
