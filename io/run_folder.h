// SPDX-License-Identifier: Apache-2.0
// OUT.parts, the folder of a run that has not ended: claimed by one process, taken up again by a
// later start of the same run (told by the fingerprint in run.h5), removed when the result is in
// place. Only files that a run makes are ever removed.
#pragma once

#include "io/h5.h"
#include "io/run_lock.h"

#include <filesystem>
#include <string>

namespace quadrille {

// Error{usage} with the differing fields, where the folder holds parts of a run with another
// fingerprint, or of none; Error{input} where run.h5 is damaged or newer than this program. A
// folder without parts passes. Writes nothing.
void check_run(const std::filesystem::path& folder, const h5::Attributes& fingerprint);

class RunFolder {
  public:
    // Error: RunLock, check_run; Error{io} where it cannot be written.
    RunFolder(const std::filesystem::path& folder, const h5::Attributes& fingerprint,
              Locking locking);
    // Removes the folder if it holds no part; forgets a start that has computed nothing.
    ~RunFolder();
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    const std::string& run() const { return run_; }  // names the run in its parts
    RunLock& lock() { return lock_; }
    const RunLock& lock() const { return lock_; }

    // Renames a part that cannot be used to PART.bad, or PART.bad-2 …; returns the new path.
    static std::filesystem::path set_aside(const std::filesystem::path& part);
    // The result is in place, or nothing was computed: removes the files of the run and, if nothing
    // else is in it, the folder.
    void remove();

  private:
    void remove_unfinished() const;
    void tidy() noexcept;

    std::filesystem::path path_;
    std::string run_;
    RunLock lock_;
    bool removed_ = false;
};

}  // namespace quadrille
