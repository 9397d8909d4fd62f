// SPDX-License-Identifier: Apache-2.0
// OUT.parts/crashes: a line for every process of the run that ended by itself while it ran records,
// "start<tab>cause<tab>records", a record being SOURCE/PROMPT/SAMPLE. It tells which records may
// have ended it: those that ran. A process that was killed leaves no line.
#pragma once

#include "io/records.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

inline constexpr const char* kCrashLog = "crashes";

// `text` as a line has it: one line, 300 bytes at most.
std::string crash_cause(std::string_view text);
// The records that ran, as a line has them.
std::string crash_text(std::span<const RecordKey> records);

// By record of the log: the causes of the ends that it was part of, one a start. Lines that make no
// sense count for nothing; no file: nothing.
std::map<RecordKey, std::vector<std::string>> read_crashes(const std::filesystem::path& folder);

}  // namespace quadrille
