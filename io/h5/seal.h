// SPDX-License-Identifier: Apache-2.0
// A seal on a finished file: its last 32 bytes hold a digest of all that comes before, so that a
// file which was cut short or altered is noticed before any library tries to read it. HDF5 ignores
// what follows its own data, and cuts it off when the file is opened to be written: a file that was
// changed on purpose has no seal.
#pragma once

#include <cstdint>
#include <filesystem>

namespace quadrille {

enum class Seal : uint8_t {
    none,    // not made by this program, changed since with HDF5, or cut short
    holds,   // every byte is as it was written
    broken,  // some byte is not
};

// Appends the seal and fsyncs. Error{io}.
void seal_file(const std::filesystem::path& path);

// Reads the whole file. Error{io} where it cannot be read.
Seal seal_of(const std::filesystem::path& path);
inline bool seal_holds(const std::filesystem::path& path) {
    return seal_of(path) == Seal::holds;
}

// Error{input} where the seal is broken; a file without one passes.
void refuse_broken_seal(const std::filesystem::path& path);

}  // namespace quadrille
