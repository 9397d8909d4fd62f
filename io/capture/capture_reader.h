// SPDX-License-Identifier: Apache-2.0
// Reads capture.h5 (io/FORMAT.md): token sequences of a target with what a drafter sees of them.
// The layout, the lists and the two digests are checked when the file is opened; rows are read when
// asked for, a sequence at a time.
#pragma once

#include "io/h5/h5.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {

// What a capture must have been made of.
struct CaptureWanted {
    std::vector<int64_t> tap_layers;
    int64_t hidden = 0;
    int64_t vocab = 0;
    std::string checkpoint_digest;  // of the target; "": any
};

// Rows of one sequence, row-major; taps are bits of bf16.
struct CaptureRows {
    std::vector<uint16_t> taps;       // (rows, taps * hidden)
    std::vector<float> final_hidden;  // (rows, hidden)
};

class CaptureReader {
  public:
    // Error{input} naming file, field, expected and found: no capture, not complete, a broken seal,
    // other layers, sizes or checkpoint, lists that do not fit each other, no supervised token.
    CaptureReader(const std::filesystem::path& path, const CaptureWanted& wanted);

    const std::filesystem::path& path() const { return path_; }
    int64_t sequences() const { return static_cast<int64_t>(offsets_.size()) - 1; }
    int64_t length(int64_t sequence) const { return end(sequence) - begin(sequence); }
    int64_t tokens() const { return offsets_.back(); }
    int64_t hidden() const { return final_hidden_.row_elements(); }
    int64_t tap_columns() const { return taps_.row_elements(); }  // taps * hidden
    // The checkpoint that it was captured from; "": not known.
    std::string checkpoint_digest() const;
    // Host memory, valid while the reader lives.
    const int32_t* tokens_of(int64_t sequence) const { return tokens_.data() + begin(sequence); }
    const uint8_t* mask_of(int64_t sequence) const { return mask_.data() + begin(sequence); }

    // Rows [first, first + count) of a sequence. Error{input} naming sequence and row where a value
    // is infinite or NaN.
    CaptureRows read(int64_t sequence, int64_t first, int64_t count) const;

  private:
    int64_t begin(int64_t sequence) const { return offsets_[static_cast<size_t>(sequence)]; }
    int64_t end(int64_t sequence) const { return offsets_[static_cast<size_t>(sequence) + 1]; }
    void check_source(const CaptureWanted& wanted) const;
    void check_lists(int64_t vocab) const;
    [[noreturn]] void refuse_row(const h5::Dataset& data, int64_t sequence, int64_t row) const;

    std::filesystem::path path_;
    h5::File file_;
    h5::Group capture_;
    h5::Dataset taps_, final_hidden_;
    std::vector<int32_t> tokens_;
    std::vector<int64_t> offsets_;
    std::vector<uint8_t> mask_;
};

}  // namespace quadrille
