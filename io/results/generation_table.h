// SPDX-License-Identifier: Apache-2.0
// Writes the datasets of a generations file or part (io/FORMAT.md). The numbers of tokens and
// trace steps are known beforehand, so every dataset has its final size and rows may come in any
// order. Each row's statistics are checked on the way: an Error{internal} names the record.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

enum class IdKind : uint8_t { none, integer, string };

IdKind kind_of(const Ids& ids);

// Which datasets a generations file has.
struct GenerationLayout {
    int64_t k = 0;  // largest number of drafts a step
    IdKind id = IdKind::none;
    bool text = false;
    bool origin = false;               // `source` and `sample`
    std::vector<std::string> sources;  // names of the prompt files, with `origin`
    bool trace = false;
    int64_t logprobs = -1;  // alternatives a token; -1: no /logprobs
    bool scores = false;    // of `score`: /scores, with logprobs

    friend bool operator==(const GenerationLayout&, const GenerationLayout&) = default;
};

// The kind of a file of finished records.
const char* result_kind(const GenerationLayout& layout);

// What is wrong with a record's tokens and statistics (the identities of io/FORMAT.md); "" if
// nothing is. An empty by_position and histogram stand for zeros.
std::string find_violation(const Generation& generation, int64_t k);

// Sum of a record's log-probabilities as they are stored, in fp64; NaN for one with an error.
double sum_logprob(const Generation& generation);

class GenerationTable {
  public:
    // Makes /generations, /acceptance and /logprobs. Record i owns tokens offsets[i] … offsets[i+1]
    // and, with a trace, the steps trace_offsets[i] … trace_offsets[i+1].
    GenerationTable(h5::Group& root, const GenerationLayout& layout, std::vector<int64_t> offsets,
                    std::vector<int64_t> trace_offsets);

    // Rows `row`, `row` + 1, …
    void write(int64_t row, std::span<const Generation> generations);

  private:
    void write_columns(int64_t row, std::span<const Generation> generations);
    void write_acceptance(int64_t row, std::span<const Generation> generations);
    void write_logprobs(int64_t token, std::span<const Generation> generations);
    void write_scores(int64_t row, std::span<const Generation> generations);
    void check(int64_t row, const Generation& generation) const;

    GenerationLayout layout_;
    std::vector<int64_t> offsets_;
    std::vector<int64_t> trace_offsets_;

    h5::Dataset tokens_, status_, finish_reason_, error_, prompt_index_, prompt_tokens_;
    h5::Dataset steps_, drafted_, accepted_, emitted_, by_position_, histogram_;
    std::optional<h5::Dataset> id_, text_, source_, sample_, trace_, chosen_, top_ids_, top_, sum_,
        is_greedy_;
};

}  // namespace quadrille
