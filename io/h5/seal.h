// SPDX-License-Identifier: Apache-2.0
// A seal on a finished file: its last 32 bytes hold a digest of all that comes before, so that a
// file which was cut short or altered is noticed before any library tries to read it. HDF5 ignores
// what follows its own data.
#pragma once

#include <filesystem>

namespace quadrille {

// Appends the seal and fsyncs. Error{io}.
void seal_file(const std::filesystem::path& path);

// False: no seal, or not that of these bytes. Error{io} where the file cannot be read.
bool seal_holds(const std::filesystem::path& path);

}  // namespace quadrille
