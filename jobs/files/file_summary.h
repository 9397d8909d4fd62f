// SPDX-License-Identifier: Apache-2.0
// Text about the HDF5 files of ours, for `inspect`: what they hold, their datasets, the first
// records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace quadrille {

// `limit`: records shown. Errors as those of the readers.
std::string describe_prompts(const std::filesystem::path& path, int64_t limit);
// `kind`: generations or part.
std::string describe_generations(const std::filesystem::path& path, const std::string& kind,
                                 int64_t limit);
// Any other file of ours: attributes and datasets.
std::string describe_any(const std::filesystem::path& path, const std::string& kind);

}  // namespace quadrille
