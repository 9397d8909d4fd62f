// SPDX-License-Identifier: Apache-2.0
// Aligned columns of text for the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

class Table {
  public:
    // A letter a column: 'l' flush left, 'r' flush right.
    explicit Table(std::string_view alignment) : alignment_(alignment) {}

    Table& row(std::vector<std::string> cells);  // one cell a column
    bool empty() const { return rows_.empty(); }
    // Rows indented by `indent` blanks, columns two blanks apart, each line ended by a line feed.
    std::string text(int indent = 2) const;

  private:
    std::string alignment_;
    std::vector<std::vector<std::string>> rows_;
};

// Characters a terminal shows for UTF-8 text, taking each for one column.
int64_t display_width(std::string_view text);
// At most `width` characters, on one line: control characters become blanks, a cut ends in "…".
std::string excerpt(std::string_view text, int64_t width);
// "1.5 GB" and the like; plain bytes below 1000.
std::string format_bytes(int64_t bytes);

}  // namespace quadrille
