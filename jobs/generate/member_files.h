// SPDX-License-Identifier: Apache-2.0
// The files of a group that does not lead the run: the same prompts, parts of its own.
#pragma once

#include "io/results/run_lock.h"
#include "jobs/generate/run_files.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

class MemberFiles final : public RunFiles {
  public:
    // `shape`: that of the run, from its leader.
    MemberFiles(const Around& around, const RunShape& shape);

    // Takes part in the run, once its leader has claimed it. `done`, `ends`: the leader's.
    void join(int group, std::vector<bool> done, std::vector<char> ends);

    // Once joined.
    int64_t computed() const override { return writer_->computed(); }
    GroupParts parts() const override { return writer_->parts(); }

  private:
    bool has_writer() const override { return writer_.has_value(); }
    void write(Generation generation) override;
    void write_running(std::vector<Generation> running) override;
    void commit_part(bool only_if_old) override;

    std::string run_;  // its name in parts
    int64_t start_ = 0;
    std::optional<RunLock> lock_;
    std::optional<GroupWriter> writer_;
};

}  // namespace quadrille
