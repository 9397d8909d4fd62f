// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/table.h"

#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace quadrille {
namespace {

bool starts_character(char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

std::string padded(const std::string& cell, int64_t width, bool right) {
    const std::string blanks(static_cast<size_t>(std::max<int64_t>(width - display_width(cell), 0)),
                             ' ');
    return right ? blanks + cell : cell + blanks;
}

}  // namespace

Table& Table::row(std::vector<std::string> cells) {
    require(cells.size() == alignment_.size(), "table: a cell a column");
    rows_.push_back(std::move(cells));
    return *this;
}

std::string Table::text(int indent) const {
    std::vector<int64_t> widths(alignment_.size(), 0);
    for (const auto& row : rows_)
        for (size_t i = 0; i < row.size(); ++i)
            widths[i] = std::max(widths[i], display_width(row[i]));
    std::string out;
    for (const auto& row : rows_) {
        std::string line(static_cast<size_t>(indent), ' ');
        for (size_t i = 0; i < row.size(); ++i)
            line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], alignment_[i] == 'r');
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + '\n';
    }
    return out;
}

int64_t display_width(std::string_view text) {
    return std::count_if(text.begin(), text.end(), starts_character);
}

std::string excerpt(std::string_view text, int64_t width) {
    std::string line = storable_text(text.substr(0, static_cast<size_t>(4 * width + 4)));
    for (char& byte : line)
        if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) byte = ' ';
    if (display_width(line) <= width) return line;
    size_t end = 0;
    for (int64_t left = width; end < line.size(); ++end)
        if (starts_character(line[end]) && left-- <= 1) break;
    return line.substr(0, end) + "…";
}

std::string format_bytes(int64_t bytes) {
    constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
    return unit == 0 ? fmt::format("{} B", bytes)
                     : fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, kUnits[unit]);
}

}  // namespace quadrille
