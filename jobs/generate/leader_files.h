// SPDX-License-Identifier: Apache-2.0
// The files of the run's leader: it settles what the run is and what of it is done, and makes the
// result of all groups' parts.
#pragma once

#include "jobs/generate/run_files.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace quadrille {

class LeaderFiles final : public RunFiles {
  public:
    explicit LeaderFiles(const Around& around) : RunFiles(around) {}

    // Checks and claims the output, takes up what earlier starts have done. A dry run only checks.
    RunShape claim();

    // Once the output is claimed.
    const ResultSummary& resumed() const { return writer_->resumed(); }
    int64_t computed() const override { return writer_->computed_now(); }
    GroupParts parts() const override { return writer_->parts(); }
    // What another group has done.
    void add_group(const GroupParts& parts, int64_t computed);
    // The sum over the starts before this one.
    StartFigures earlier() const;
    // The result; no record is left.
    ResultSummary finish(RunFacts facts);

  private:
    RunShape shape() const;
    void tell_of_crashes() const;
    bool has_writer() const override { return writer_.has_value(); }
    void write(Generation generation) override;
    void write_running(std::vector<Generation> running) override;
    void commit_part(bool only_if_old) override;

    std::optional<ResultWriter> writer_;
};

}  // namespace quadrille
