// SPDX-License-Identifier: Apache-2.0
// The records of a run, in order, ready for the engine: prompts of all files, those of the shard,
// each as often as there are samples; read in slices, text tokenized, tokens and options checked.
// One rank of a group has one.
#pragma once

#include "io/prompts/prompt_reader.h"
#include "io/text/tokenizer.h"
#include "jobs/prompts/prompt_source_options.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace quadrille {

class RecordSource {
  public:
    // `paths`: prompts.h5 files, options.prompts first. `tokenizer`: that of the checkpoint
    // `target`, or nullptr: text prompts and stop strings are an Error{input} then.
    RecordSource(const PromptSourceOptions& options, const std::vector<std::string>& paths,
                 const std::string& target, int64_t vocab_size, const Tokenizer* tokenizer);

    // Ascending; a record is named by its place among them.
    const std::vector<RecordKey>& keys() const { return keys_; }
    int64_t record_count() const { return std::ssize(keys_); }

    // Each file's ids and what the user calls it.
    std::vector<const Ids*> ids() const;
    std::vector<std::string> names() const;
    std::vector<std::string> notices() const;
    std::string digest() const;  // names the prompts and their options
    // True: results need to say of which file and sample they are.
    bool has_origin() const { return files_.size() > 1 || sampled_; }
    // By record: asked for as a completion of OpenAI's; empty: none is.
    std::vector<bool> completions() const;
    // The most alternatives a record asks for; -1: no log-probabilities.
    int64_t largest_logprobs() const;
    bool has_stop_text() const;
    // Largest sum of a record's prompt and its max_new_tokens; text files are tokenized for it.
    int64_t largest_total() const;
    // Prompts of `context` tokens or more get an error.
    void set_context(int64_t context) { limits_.context = context; }

    // Records first, first + 1, …: at most `count`, none behind the last one.
    std::vector<Prompt> read(int64_t first, int64_t count) const;
    // The first record error as "FILE: record 3: …"; "" if there is none. Reads everything.
    std::string first_error() const;

  private:
    struct File {
        std::string name;
        PromptReader reader;
    };

    void list_records(const PromptSourceOptions& options);
    // Says which prompts ask for several samples that must come out equal.
    void note_equal_samples();
    // Prompts first, first + 1, … of a file.
    std::vector<Prompt> load(int32_t source, int64_t first, int64_t count) const;
    void add_stop_tokens(RecordOptions& options) const;
    void set_sample(Prompt& prompt, const RecordKey& key) const;

    const Tokenizer* tokenizer_;
    PromptLimits limits_;
    bool sampled_;  // a prompt may have several samples
    std::vector<std::unique_ptr<File>> files_;
    std::vector<RecordKey> keys_;
    std::vector<std::string> notices_;  // our own
};

}  // namespace quadrille
