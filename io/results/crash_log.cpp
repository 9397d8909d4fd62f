// SPDX-License-Identifier: Apache-2.0
#include "io/results/crash_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

namespace quadrille {
namespace {

constexpr int64_t kLongest = int64_t{1} << 24;  // bytes that are looked at
constexpr size_t kLongestCause = 300;

std::string_view take_until(std::string_view& text, char end) {
    const size_t at = text.find(end);
    const std::string_view piece = text.substr(0, at);
    text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
    return piece;
}

template <class Number>
std::optional<Number> number(std::string_view text) {
    Number value{};
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || stop != text.data() + text.size() || value < 0) return {};
    return value;
}

std::optional<RecordKey> record(std::string_view text) {
    const auto source = number<int32_t>(take_until(text, '/'));
    const auto prompt = number<int64_t>(take_until(text, '/'));
    const auto sample = number<int32_t>(text);
    if (!source || !prompt || !sample) return {};
    return RecordKey{.source = *source, .prompt_index = *prompt, .sample = *sample};
}

}  // namespace

std::string crash_cause(std::string_view text) {
    std::string cause(text.substr(0, kLongestCause));
    std::ranges::replace_if(
        cause, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return cause;
}

std::string crash_text(std::span<const RecordKey> records) {
    std::string text;
    for (const RecordKey& key : records) {
        fmt::format_to(std::back_inserter(text), "{}{}/{}/{}", text.empty() ? "" : " ", key.source,
                       key.prompt_index, key.sample);
    }
    return text;
}

std::map<RecordKey, std::vector<std::string>> read_crashes(const std::filesystem::path& folder) {
    std::map<RecordKey, std::vector<std::string>> causes;
    std::set<std::pair<RecordKey, int64_t>> counted;
    std::ifstream file(folder / kCrashLog);
    int64_t read = 0;
    for (std::string text; read < kLongest && std::getline(file, text);) {
        read += std::ssize(text);
        std::string_view line = text;
        const auto start = number<int64_t>(take_until(line, '\t'));
        const std::string_view cause = take_until(line, '\t');
        while (start && !line.empty()) {
            const auto key = record(take_until(line, ' '));
            if (key && counted.emplace(*key, *start).second) causes[*key].emplace_back(cause);
        }
    }
    return causes;
}

}  // namespace quadrille
