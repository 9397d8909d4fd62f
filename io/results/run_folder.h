// SPDX-License-Identifier: Apache-2.0
// OUT.parts, the folder of a run that has not ended: claimed by one process, taken up again by a
// later start of the same run (told by the fingerprint in run.h5), removed when the result is in
// place. Only files that a run makes are ever removed.
#pragma once

#include "io/h5/h5.h"
#include "io/results/run_lock.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {

// What the parts in a folder say of their run.
struct EarlierRun {
    std::string name;                 // in its parts; empty: the folder holds none
    std::vector<std::string> unsaid;  // fields of the fingerprint that its version did not record
};

// Error{usage} with the differing fields, where the folder holds parts of a run with another
// fingerprint, or of none; Error{input} where run.h5 is damaged or newer than this program. A
// field that run.h5 lacks is taken as equal: versions add fields. Writes nothing.
EarlierRun check_run(const std::filesystem::path& folder, const h5::Attributes& fingerprint);

// Records with an error in the finished results `out`. Error{usage} with the differing fields where
// they are of another run, or do not say of which.
int64_t check_result(const std::filesystem::path& out, const std::string& kind,
                     const h5::Attributes& fingerprint);

// Records of the run whose parts the folder holds; -1: it does not tell.
int64_t records_of_run(const std::filesystem::path& folder);

// Names the run in its parts.
std::string run_name(const h5::Attributes& fingerprint);

class RunFolder {
  public:
    // Error: RunLock, check_run; Error{io} where it cannot be written.
    // `records`: of the run, told to those who look at it.
    RunFolder(const std::filesystem::path& folder, const h5::Attributes& fingerprint,
              int64_t records, Locking locking);
    // Removes the folder if it holds no part and nothing of a crash; forgets a start that has
    // computed nothing.
    ~RunFolder();
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    const std::string& run() const { return run_; }  // names the run in its parts
    // Fields of the fingerprint by which the parts that are there could not be judged.
    const std::vector<std::string>& unsaid() const { return unsaid_; }
    RunLock& lock() { return lock_; }
    int64_t restarts() const { return lock_.restarts(); }
    // Records computed by all starts and all groups of ranks.
    int64_t computed() const { return lock_.computed() + by_groups_before_ + by_groups_; }
    // Records that other groups have computed in this start, and have committed.
    void add_computed(int64_t records) { by_groups_ += records; }

    // Renames a part that cannot be used to PART.bad, or PART.bad-2 …; returns the new path.
    static std::filesystem::path set_aside(const std::filesystem::path& part);
    // The result is in place, or nothing was computed: removes the files of the run and, if nothing
    // else is in it, the folder.
    void remove();

  private:
    void begin(const h5::Attributes& fingerprint, int64_t records);
    void remove_unfinished() const;
    void tidy() noexcept;

    std::filesystem::path path_;
    std::string run_;
    std::vector<std::string> unsaid_;
    RunLock lock_;
    int64_t by_groups_before_ = 0;
    int64_t by_groups_ = 0;
    bool removed_ = false;
};

}  // namespace quadrille
