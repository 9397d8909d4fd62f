// SPDX-License-Identifier: Apache-2.0
// The records of a run, in order, ready for the engine: read in slices, text tokenized, tokens and
// options checked. One rank of a group has one.
#pragma once

#include "io/prompt_reader.h"
#include "io/tokenizer.h"
#include "jobs/options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

class RecordSource {
  public:
    // `path`: prompts.h5. `tokenizer` may be nullptr: a text file is an Error{input} then.
    RecordSource(const GenerateOptions& options, const std::string& path, int64_t vocab_size,
                 const Tokenizer* tokenizer);

    int64_t record_count() const { return count_; }
    std::string name() const { return reader_.path().string(); }
    std::string digest() const { return reader_.digest(); }  // names the prompts and their options
    const Ids& ids() const { return reader_.ids(); }
    const std::vector<std::string>& notices() const { return reader_.notices(); }
    // Largest sum of a record's prompt and its max_new_tokens; a text file is tokenized for it.
    int64_t largest_total() const;
    // Prompts of `context` tokens or more get an error.
    void set_context(int64_t context) { limits_.context = context; }

    std::vector<Prompt> read(int64_t first, int64_t count) const;
    // The first record error as "record 3: …"; "" if there is none. Reads everything.
    std::string first_error() const;

  private:
    const Tokenizer* tokenizer_;
    PromptReader reader_;
    PromptLimits limits_;
    int64_t count_ = 0;
};

}  // namespace quadrille
