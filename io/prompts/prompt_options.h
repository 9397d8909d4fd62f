// SPDX-License-Identifier: Apache-2.0
// The optional columns and attributes of /prompts that set a record's options: their types, ranges
// and precedence (column, attribute, flag, built-in default). A wrong type or length concerns the
// file and throws; one value out of range concerns its record and sets Prompt::error.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// `group`/`name` holds offsets [records + 1] into `total` values: integers that start at 0, never
// fall and end at `total`. records < 0: any number. Error{input} otherwise.
std::vector<int64_t> read_offsets(const h5::Group& group, const std::string& name, int64_t records,
                                  int64_t total);

// Throws Error{input}, naming both lengths, unless the dataset is 1-D with one row a record.
void expect_column(const h5::Dataset& column, int64_t records);

class PromptOptions {
  public:
    // Checks every column at once, in slices. `defaults`: flags over built-in defaults. An option
    // outside `honoured` may only be at its default marker or built-in default: else Error{input}.
    PromptOptions(const h5::Group& prompts, int64_t records, const RecordOptions& defaults,
                  const std::set<std::string>& honoured);

    static const std::set<std::string>& names();     // of all options
    static const std::set<std::string>& datasets();  // names() and the lists' offsets

    // Sets options, and error if a value is out of range, of records first, first + 1, …
    // `vocab_size` bounds stop_tokens; 0: not known.
    void read(int64_t first, std::span<Prompt> prompts, int64_t vocab_size) const;
    // The seed of an attribute of /prompts: like --seed it is the run's, not the records'.
    std::optional<uint64_t> run_seed() const { return run_seed_; }
    // The most alternatives a record asks for; -1: none asks for log-probabilities.
    int64_t largest_logprobs() const;
    bool has_stop_text() const;
    // Values of those records; -1 where one is out of range.
    std::vector<int64_t> max_new_tokens(int64_t first, int64_t count) const;
    // Generations of those prompts; 1 where the value is out of range.
    std::vector<int64_t> samples(int64_t first, int64_t count) const;
    std::vector<double> temperatures(int64_t first, int64_t count) const;

  private:
    // Values of the i-th integer option, `usual` where the marker stands, else `otherwise` where
    // the value is out of range.
    std::vector<int64_t> ints(size_t i, int64_t first, int64_t count, int64_t usual,
                              int64_t otherwise) const;

    struct List {
        std::optional<h5::Dataset> values;
        std::vector<int64_t> offsets;
    };

    void take_attributes(const h5::Group& prompts, const std::set<std::string>& honoured);
    void take_scalar_columns(const h5::Group& prompts, const std::set<std::string>& honoured);
    List take_list(const h5::Group& prompts, const std::string& name, h5::TypeClass kind,
                   const std::set<std::string>& honoured) const;
    void read_stop_tokens(int64_t first, std::span<Prompt> prompts, int64_t vocab_size) const;
    void read_stop_text(int64_t first, std::span<Prompt> prompts) const;

    int64_t records_;
    std::optional<uint64_t> run_seed_;
    RecordOptions base_;                            // what a record has that no column sets
    std::vector<std::optional<h5::Dataset>> ints_;  // in the order of the tables in the source
    std::vector<std::optional<h5::Dataset>> floats_;
    List stop_tokens_;
    List stop_text_;
};

}  // namespace quadrille
