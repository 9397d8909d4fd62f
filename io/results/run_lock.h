// SPDX-License-Identifier: Apache-2.0
// OUT.parts/lock: held with flock while a run writes to OUT, so that two never do. It also counts:
// a line for every start of the run, "host process records", records being those it computed. The
// numbers outlive a killed process. Every further group of ranks holds a lock of its own, lock-G:
// the process that leads the run may be dead while another still commits a part.
#pragma once

#include "io/files.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace quadrille {

// What HDF5_USE_FILE_LOCKING says: TRUE or nothing, BEST_EFFORT, FALSE.
enum class Locking { required, best_effort, off };

class RunLock {
  public:
    // The ranks of a run whose mpirun was killed live on for about a second.
    static constexpr std::chrono::milliseconds kPatience{5000};

    // The lock of a group; that of group 0 is the run's. Makes `folder` if need be. Error{usage}
    // with host and process of the run that holds the lock after `patience`, or where `folder` is
    // none; Error{io}, and so is a file system without locks unless `locking` lets it pass.
    RunLock(const std::filesystem::path& folder, Locking locking,
            std::chrono::milliseconds patience = kPatience, int group = 0);

    // Waits until no process holds the locks of groups above 0 that earlier starts have left in
    // `folder`; returns the records that those counted. For the holder of the run's lock. Errors
    // as above.
    static int64_t settle_groups(const std::filesystem::path& folder, Locking locking,
                                 std::chrono::milliseconds patience = kPatience);
    static bool is_lock(const std::string& name);  // of any group

    int64_t restarts() const { return restarts_; }                     // starts before this one
    int64_t computed() const { return computed_before_ + computed_; }  // records, by all starts
    int64_t computed_now() const { return computed_; }                 // records, by this start
    void count(int64_t records);
    void withdraw() noexcept;                   // this start has done nothing, and is forgotten
    void release() noexcept { file_.reset(); }  // nothing is counted any more

  private:
    RunLock() = default;
    void acquire(const std::filesystem::path& folder, Locking locking,
                 std::chrono::milliseconds patience, const std::string& name);
    void read_starts();
    std::string line() const;

    std::optional<FileHandle> file_;
    int64_t at_ = 0;  // of our line
    int64_t restarts_ = 0;
    int64_t computed_before_ = 0;
    int64_t computed_ = 0;
};

}  // namespace quadrille
