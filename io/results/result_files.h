// SPDX-License-Identifier: Apache-2.0
// A run's results lie in OUT, and while it runs OUT.parts/part-G-NNNNNN.h5 (finished records of
// group G). A part appears whole, under its name, or not at all.
#pragma once

#include "io/h5/h5.h"
#include "io/records.h"
#include "io/results/generation_table.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace quadrille {

std::filesystem::path parts_folder(const std::filesystem::path& out);

// The parts in a folder by name; unfinished ones are not among them.
std::vector<std::filesystem::path> list_parts(const std::filesystem::path& folder);

std::filesystem::path part_path(const std::filesystem::path& folder, int group, int64_t number);

// Files of running records that a start has left when it was stopped, by name: partial-G-NNNNNN.h5
// of group G, one a start. Like parts, but of generations without an end.
std::vector<std::filesystem::path> list_partials(const std::filesystem::path& folder);
std::filesystem::path next_partial(const std::filesystem::path& folder, int group);

// Writes the records as a file of kind part, sealed, under its name at once; `before_commit` (may
// be empty) is called before.
void write_part(const std::filesystem::path& path, const GenerationLayout& layout,
                const std::string& run, const std::vector<Generation>& records,
                const std::function<void()>& before_commit);

// The file that results for `out` go to (io/output.h). Only a file of this kind may be replaced,
// with `overwrite`. `taken`: the run's inputs and other outputs. Writes nothing.
std::filesystem::path check_output(const std::filesystem::path& out, const std::string& kind,
                                   bool overwrite,
                                   const std::vector<std::filesystem::path>& taken = {});

// Collects the finished records of one group and commits them as parts.
class PartWriter {
  public:
    static constexpr int64_t kRecords = 256;              // of a part, at most
    static constexpr int64_t kTokens = int64_t{1} << 22;  // held back, about
    static constexpr std::chrono::seconds kAge{60};       // of a record that is not yet committed

    // `run` names the run in its parts. `before_commit` is called before a part gets its name, and
    // throws where that must not happen. Part numbers go on from those in the folder.
    PartWriter(std::filesystem::path folder, int group, GenerationLayout layout, std::string run,
               std::function<void()> before_commit = {});

    void add(Generation generation);  // commits when a part is full or old enough
    void commit_if_old();
    void commit();  // what is held back becomes a part; nothing held back: no part

    // Numbers of the parts committed so far: from first_part() up to, not including, next_part().
    int64_t first_part() const { return first_part_; }
    int64_t next_part() const { return next_part_; }

  private:
    using Clock = std::chrono::steady_clock;

    std::filesystem::path folder_;
    int group_;
    GenerationLayout layout_;
    std::string run_;
    std::function<void()> before_commit_;
    int64_t first_part_ = 0;
    int64_t next_part_ = 0;
    int64_t held_tokens_ = 0;
    Clock::time_point oldest_;
    std::vector<Generation> held_;
};

}  // namespace quadrille
