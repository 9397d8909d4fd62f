// SPDX-License-Identifier: Apache-2.0
// Reads a generations file or part in slices. Types, shapes and offsets are checked when it is
// opened: Error{input} naming file, dataset, expected and found.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"
#include "io/results/generation_table.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

class GenerationReader {
  public:
    // `kind`: schema::kGenerations or kScores, whose seal, if any, must hold, or schema::kPart.
    GenerationReader(const std::filesystem::path& path, const std::string& kind);

    const std::filesystem::path& path() const { return path_; }
    const h5::File& file() const { return file_; }
    int64_t record_count() const { return records_; }
    const GenerationLayout& layout() const { return layout_; }
    bool is_complete() const;
    // (records + 1) each; the trace's is empty where there is no trace.
    const std::vector<int64_t>& offsets() const { return offsets_; }
    const std::vector<int64_t>& trace_offsets() const { return trace_offsets_; }

    std::vector<RecordKey> keys(int64_t first, int64_t count) const;
    std::vector<Generation> read(int64_t first, int64_t count) const;

  private:
    h5::Dataset open(const std::string& path, h5::TypeClass kind,
                     const std::vector<int64_t>& shape) const;
    void open_optional();
    std::vector<std::string> source_names() const;
    void open_acceptance();
    void open_logprobs();
    void read_columns(int64_t first, std::vector<Generation>& out) const;
    void read_acceptance(int64_t first, std::vector<Generation>& out) const;
    void read_logprobs(int64_t first, std::vector<Generation>& out) const;

    std::filesystem::path path_;
    h5::File file_;
    GenerationLayout layout_;
    int64_t records_ = 0;
    std::vector<int64_t> offsets_;
    std::vector<int64_t> trace_offsets_;
    h5::Dataset tokens_, status_, finish_reason_, error_, prompt_index_;
    h5::Dataset steps_, drafted_, accepted_, emitted_, by_position_, histogram_;
    std::optional<h5::Dataset> prompt_tokens_, id_, completion_, kind_, text_, source_, sample_,
        trace_, chosen_, top_ids_, top_, is_greedy_;
};

}  // namespace quadrille
