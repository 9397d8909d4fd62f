// SPDX-License-Identifier: Apache-2.0
// What a flag's value may be: validators for CLI11 whose messages say what was expected and what
// was found, and the forms of values that are no plain numbers.
#pragma once

#include "jobs/options/option_values.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

inline constexpr int64_t kMaxTokens = int64_t{1} << 24;  // that a flag may ask for
inline constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

CLI::Validator integer(int64_t low, int64_t high);  // high kAny: no upper bound
CLI::Validator unsigned_integer();                  // 64 bits
// low..high; low itself only if allowed; high the largest double: any finite number.
CLI::Validator real(double low, bool low_allowed, double high);
CLI::Validator one_of(std::vector<std::string> names);
CLI::Validator not_empty(std::string wanted);
CLI::Validator shard_value();  // parse_shard
// parse_time, at least `low` seconds; or `word`, where it is not empty.
CLI::Validator time_value(int64_t low, const std::string& word = "");

// A whole number of 64 bits and nothing else.
std::optional<int64_t> parse_integer(const std::string& text);
// "I/N" with 0 <= I < N.
std::optional<Shard> parse_shard(const std::string& text);
// Seconds in "90", "90s", "45m", "2h", "1d", "1:30:00" (hours, minutes, seconds) or "1-12:30:00"
// (days before it; minutes and seconds may be absent).
std::optional<int64_t> parse_time(const std::string& text);

// Throws Error{usage}.
[[noreturn]] void fail_usage(const std::string& message);
// fail_usage where `flag` was not given.
void need(bool given, const char* flag, const char* wanted);

}  // namespace quadrille
