// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/option_checks.h"

#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace quadrille {

namespace {

template <class T>
std::optional<T> parse_number(const std::string& text) {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end) return std::nullopt;
    return value;
}

constexpr int64_t kMostSeconds = 1'000'000'000;

// "D-HH", "D-HH:MM" or "D-HH:MM:SS", as Slurm writes its limits; `dash`: where the days end.
std::optional<int64_t> parse_days(const std::string& text, size_t dash) {
    constexpr std::array<int64_t, 3> kAbove = {24, 60, 60};
    const auto days = parse_number<int64_t>(text.substr(0, dash));
    if (!days || *days < 0 || *days > kMostSeconds / 86400) return std::nullopt;
    int64_t seconds = *days;
    size_t begin = dash + 1;
    for (const int64_t above : kAbove) {
        int64_t value = 0;
        if (begin <= text.size()) {
            const size_t end = std::min(text.find(':', begin), text.size());
            const auto field = parse_number<int64_t>(text.substr(begin, end - begin));
            if (!field || *field < 0 || *field >= above) return std::nullopt;
            value = *field;
            begin = end + 1;
        }
        seconds = seconds * above + value;
    }
    const bool all_read = begin > text.size();
    return all_read && seconds <= kMostSeconds ? std::optional(seconds) : std::nullopt;
}

}  // namespace

CLI::Validator integer(int64_t low, int64_t high) {
    const std::string wanted = high == kAny ? fmt::format("an integer of at least {}", low)
                                            : fmt::format("an integer from {} to {}", low, high);
    return CLI::Validator(
        [=](const std::string& text) -> std::string {
            const std::optional<int64_t> value = parse_number<int64_t>(text);
            if (value && *value >= low && *value <= high) return {};
            return fmt::format("expected {}, found '{}'", wanted, text);
        },
        "");
}

CLI::Validator unsigned_integer() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            if (parse_number<uint64_t>(text)) return {};
            return fmt::format("expected an integer from 0 to 2^64 - 1, found '{}'", text);
        },
        "");
}

CLI::Validator real(double low, bool low_allowed, double high) {
    const std::string wanted =
        high == std::numeric_limits<double>::max()
            ? fmt::format("a finite number {} {}", low_allowed ? "of at least" : "above", low)
            : fmt::format("a number {} {} to {}", low_allowed ? "from" : "above", low, high);
    return CLI::Validator(
        [=](const std::string& text) -> std::string {
            const std::optional<double> value = parse_number<double>(text);
            if (value && (low_allowed ? *value >= low : *value > low) && *value <= high) return {};
            return fmt::format("expected {}, found '{}'", wanted, text);
        },
        "");
}

std::optional<Shard> parse_shard(const std::string& text) {
    const size_t slash = text.find('/');
    if (slash == std::string::npos) return std::nullopt;
    const auto index = parse_number<int64_t>(text.substr(0, slash));
    const auto count = parse_number<int64_t>(text.substr(slash + 1));
    if (!index || !count || *index < 0 || *index >= *count) return std::nullopt;
    return Shard{*index, *count};
}

CLI::Validator one_of(std::vector<std::string> names) {
    return CLI::Validator(
        [names = std::move(names)](const std::string& text) -> std::string {
            if (std::ranges::find(names, text) != names.end()) return {};
            return fmt::format("expected {} or {}, found '{}'",
                               fmt::join(names.begin(), names.end() - 1, ", "), names.back(), text);
        },
        "");
}

CLI::Validator not_empty(std::string wanted) {
    return CLI::Validator(
        [wanted = std::move(wanted)](const std::string& text) -> std::string {
            return text.empty() ? fmt::format("expected {}, found an empty string", wanted) : "";
        },
        "");
}

std::optional<int64_t> parse_integer(const std::string& text) {
    return parse_number<int64_t>(text);
}

std::optional<int64_t> parse_time(const std::string& text) {
    const size_t dash = text.find('-');
    if (dash != std::string::npos) return parse_days(text, dash);
    int64_t seconds = 0;
    size_t begin = 0;
    for (size_t colon = 0, fields = 1; colon != std::string::npos; ++fields) {
        colon = text.find(':', begin);
        std::string field = text.substr(begin, colon - begin);
        int64_t unit = 1;
        if (fields == 1 && colon == std::string::npos && !field.empty()) {
            const size_t named = std::string_view("smhd").find(field.back());
            if (named != std::string_view::npos) field.pop_back();
            unit = named == std::string_view::npos ? 1 : std::array{1, 60, 3600, 86400}[named];
        }
        const std::optional<int64_t> value = parse_number<int64_t>(field);
        const bool in_range = value && *value >= 0 && *value <= kMostSeconds / unit;
        if (!in_range || fields > 3 || (fields > 1 && *value > 59)) return std::nullopt;
        seconds = seconds * 60 + *value * unit;
        begin = colon + 1;
    }
    return seconds <= kMostSeconds ? std::optional(seconds) : std::nullopt;
}

CLI::Validator shard_value() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            if (parse_shard(text)) return {};
            return fmt::format("expected I/N with 0 <= I < N, found '{}'", text);
        },
        "");
}

CLI::Validator time_value(int64_t low, const std::string& word) {
    return CLI::Validator(
        [low, word](const std::string& text) -> std::string {
            if (!word.empty() && text == word) return {};
            const std::optional<int64_t> seconds = parse_time(text);
            if (seconds && *seconds >= low) return {};
            return fmt::format(
                "expected a time of at least {} s such as 90, 45m, 2h, 1:30:00 or 1-12:00:00, "
                "found '{}'",
                low, text);
        },
        "");
}

void fail_usage(const std::string& message) {
    throw Error(ErrorKind::usage, message);
}

void need(bool given, const char* flag, const char* wanted) {
    if (!given) fail_usage(fmt::format("{}: expected {}, found nothing", flag, wanted));
}

}  // namespace quadrille
