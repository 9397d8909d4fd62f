// SPDX-License-Identifier: Apache-2.0
// Names in our HDF5 files, their version and kind. The layout itself: io/FORMAT.md.
#pragma once

#include "io/h5/h5.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille::schema {

inline constexpr int64_t kFormat = 1;  // readers refuse larger

inline constexpr const char* kPrompts = "prompts";
inline constexpr const char* kGenerations = "generations";
inline constexpr const char* kScores = "scores";
inline constexpr const char* kPart = "part";
inline constexpr const char* kRun = "run";
inline constexpr const char* kCapture = "capture";

inline constexpr const char* kFormatAttribute = "quadrille_format";
inline constexpr const char* kKindAttribute = "kind";
inline constexpr const char* kNamesAttribute = "names";
inline constexpr const char* kErrorsAttribute = "errors";
inline constexpr const char* kCompleteAttribute = "complete";
inline constexpr const char* kRunAttribute = "run";  // of a part: names its run

// In the order of Status and FinishReason.
inline const std::vector<std::string> kStatusNames = {"ok", "error", "cancelled"};
inline const std::vector<std::string> kFinishNames = {"none",   "eos",     "stop",
                                                      "length", "context", "error"};

// Writes the two root attributes.
void stamp(h5::File& file, const std::string& kind);

// The kind of a file of ours. Without the attributes a file that has /prompts is taken for format
// 1, kind prompts, and says so in `notices`. Error{input}: a newer format, attributes of the wrong
// type, not a file of ours.
std::string kind_of(const h5::File& file, std::vector<std::string>& notices);

// True: the file says that a newer program wrote it. An unreadable file says nothing: false.
bool is_newer(const std::filesystem::path& path);

// kind_of must be `kind`: otherwise Error{input}.
void expect_kind(const h5::File& file, const std::string& kind, std::vector<std::string>& notices);

}  // namespace quadrille::schema
