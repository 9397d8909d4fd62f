// SPDX-License-Identifier: Apache-2.0
// Text about the HDF5 files of ours, for `inspect`: what they hold, their datasets, the first
// records.
#pragma once

#include "jobs/files/run_view.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {

// `limit`: records shown. Errors as those of the readers.
std::string describe_prompts(const std::filesystem::path& path, int64_t limit);
// `kind`: generations or part.
std::string describe_generations(const std::filesystem::path& path, const std::string& kind,
                                 int64_t limit);
// Any other file of ours: attributes and datasets.
// The parts of a run together.
std::string describe_parts(const RunView& view);
// Output, records done, records, errors, tokens, accept length.
std::vector<std::string> overview_row(const RunView& view);
std::string describe_any(const std::filesystem::path& path, const std::string& kind);

}  // namespace quadrille
