// SPDX-License-Identifier: Apache-2.0
// Text files line by line, with a bound on a line's size, so that a file that is no text cannot
// fill the memory; and JSON lines on top. Every message begins "FILE:LINE".
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace quadrille {

class LineReader {
  public:
    static constexpr int64_t kMaxLine = 64 << 20;  // bytes

    // Error{input} for a folder, Error{io} when the file is missing or cannot be read.
    explicit LineReader(const std::filesystem::path& file, int64_t max_line = kMaxLine);

    // Goes to the next line; false at the end. A last line needs no line feed; a carriage return
    // before it and a byte order mark at the start of the file are not part of the line.
    // Error{input} naming the line when it is too long or not UTF-8.
    bool next();
    std::string_view line() const { return line_; }
    int64_t number() const { return number_; }  // from 1
    std::string place() const;                  // "FILE:LINE"

  private:
    bool fill();

    std::filesystem::path file_;
    std::ifstream in_;
    size_t max_line_;
    std::string buffer_;  // what has been read; line_ points into it
    size_t at_ = 0;       // start of what no line has taken
    std::string_view line_;
    int64_t number_ = 0;
};

// The next line that is not blank, parsed strictly (io/text/json.h); false at the end.
bool next_json(LineReader& lines, nlohmann::json& value);

}  // namespace quadrille
