// SPDX-License-Identifier: Apache-2.0
// A buffer that grows to the longest line and is moved down when it runs dry.
#include "io/text/jsonl.h"

#include "io/text/json.h"
#include "io/text/utf8.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>

namespace quadrille {

namespace {

constexpr size_t kBlock = 1 << 18;

}  // namespace

LineReader::LineReader(const std::filesystem::path& file, int64_t max_line)
    : file_(file), max_line_(static_cast<size_t>(max_line)) {
    std::error_code code;
    if (!std::filesystem::exists(file, code)) {
        throw Error(ErrorKind::io, fmt::format("{}: cannot open: no such file", file.string()));
    }
    if (std::filesystem::is_directory(file, code)) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected a file, found a folder", file.string()));
    }
    in_.open(file, std::ios::binary);
    if (!in_) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: cannot open: {}", file.string(), std::strerror(errno)));
    }
}

std::string LineReader::place() const {
    return fmt::format("{}:{}", file_.string(), number_);
}

// Reads another block; false at the end of the file.
bool LineReader::fill() {
    if (at_ > 0) buffer_.erase(0, at_);
    at_ = 0;
    const size_t held = buffer_.size();
    buffer_.resize(held + kBlock);
    in_.read(buffer_.data() + held, static_cast<std::streamsize>(kBlock));
    if (in_.bad()) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: reading failed: {}", file_.string(), std::strerror(errno)));
    }
    buffer_.resize(held + static_cast<size_t>(in_.gcount()));
    return in_.gcount() > 0;
}

bool LineReader::next() {
    size_t end = buffer_.find('\n', at_);
    while (end == std::string::npos) {
        const size_t waiting = buffer_.size() - at_;
        if (waiting > max_line_ + 1) break;
        if (!fill()) break;
        end = buffer_.find('\n', at_ + waiting);
    }
    const bool last = end == std::string::npos;
    if (last && at_ == buffer_.size()) return false;
    ++number_;
    line_ = std::string_view(buffer_).substr(at_, (last ? buffer_.size() : end) - at_);
    at_ = last ? buffer_.size() : end + 1;
    if (line_.size() > max_line_) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected at most {} bytes in a line", place(), max_line_));
    }
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.remove_prefix(3);
    if (const size_t broken = find_broken_utf8(line_); broken != std::string_view::npos) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected UTF-8, found byte 0x{:02x} at offset {}", place(),
                                static_cast<uint8_t>(line_[broken]), broken));
    }
    return true;
}

bool next_json(LineReader& lines, nlohmann::json& value) {
    while (lines.next()) {
        if (lines.line().find_first_not_of(" \t") == std::string_view::npos) continue;
        value = parse_json(lines.line(), lines.place());
        return true;
    }
    return false;
}

}  // namespace quadrille
