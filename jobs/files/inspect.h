// SPDX-License-Identifier: Apache-2.0
// inspect: says what is in a file of ours or in a checkpoint folder. Reading a file checks it as
// the jobs that use it do: what they would refuse is the same Error here.
#pragma once

#include "jobs/files/files_options.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace quadrille {

// The report on one path; `limit`: records shown.
std::string describe_path(const std::filesystem::path& path, int64_t limit);

// Prints the reports. The exit code.
int run_inspect(const InspectOptions& options);

}  // namespace quadrille
