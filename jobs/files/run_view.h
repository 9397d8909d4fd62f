// SPDX-License-Identifier: Apache-2.0
// An output as it is now: finished, or the parts of a run that lasts or was interrupted. Nothing is
// locked: a run goes on while it is looked at.
#pragma once

#include "io/records.h"

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

struct RunView {
    std::filesystem::path path;                // the file, or OUT.parts
    std::vector<std::filesystem::path> files;  // to read: the file, or the parts by name
    bool parts = false;
    int64_t records = -1;  // of the run, with parts; -1: not told

    // "OUT.parts: 16 of 100 records done".
    std::string progress(int64_t done) const;
};

// The output `path` names: OUT, or OUT.parts. A path that is not there stands for the parts of its
// run, where they are. Error{input}: a folder that holds no run.
RunView view_run(const std::filesystem::path& path);
// True: `path` is a folder of parts, or stands for one.
bool is_run(const std::filesystem::path& path);

// Passes over records that an earlier part has too.
class FirstOnly {
  public:
    bool operator()(const Generation& generation) {
        return seen_.insert(key_of(generation)).second;
    }

  private:
    std::set<RecordKey> seen_;
};

}  // namespace quadrille
