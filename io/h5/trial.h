// SPDX-License-Identifier: Apache-2.0
// A damaged file can crash the HDF5 library or keep it busy for ever. Files that bear no seal of
// ours are therefore read through once in a process of their own before a job depends on them. That
// process is this program started anew (posix_spawn: nothing of MPI, its threads and its handlers
// goes along), with limits on memory and processor time.
#pragma once

#include <filesystem>
#include <vector>

namespace quadrille {

// The one argument that starts the program as such a process.
inline constexpr const char* kTrialArgument = "--read-through";

// Reads every dataset and attribute of the files that are there and have no seal that holds.
// Error{input} naming file and dataset where that crashes, does not end or takes too much memory;
// what else is wrong with a file is left to those who read it. Error{io}: no process. `program`:
// what is started.
void try_files(const std::vector<std::filesystem::path>& files,
               const std::filesystem::path& program = "/proc/self/exe");

// The process itself: takes the files' names from standard input, each ended by NUL, and says on
// standard output which file and dataset it is at. The exit code.
int run_trial();

}  // namespace quadrille
