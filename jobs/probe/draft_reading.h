// SPDX-License-Identifier: Apache-2.0
// What a drafter makes of a capture's taps: its drafts against the captured tokens, and a drafter
// with another fc. It computes in fp32 on the CPU, as training does, on one rank.
#pragma once

#include "drafter/make_drafter.h"
#include "drafter/train/trainer.h"
#include "jobs/common/model_session.h"
#include "jobs/probe/served.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

class DraftReading {
  public:
    // The session's checkpoint is read; outlives this. Error{input}, {usage}: the drafter.
    DraftReading(ModelSession& session, const std::filesystem::path& folder);

    const DraftConfig& config() const { return files_.config; }
    const std::filesystem::path& folder() const { return folder_; }

    // Reads the weights for batches of `data`, which outlives this. Error{input}.
    void load(const TrainData& data);
    // Blocks at every token that a block can begin at.
    Served measure(const std::vector<int64_t>& sequences);

    std::vector<float> fc() const;
    void set_fc(const std::vector<float>& values);
    // The drafter as it is now, in the official format. Error{io}.
    void write(const std::filesystem::path& folder);

  private:
    ModelSession& session_;
    std::filesystem::path folder_;
    DrafterFiles files_;
    Parameters parameters_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> alone_;
    const TrainData* data_ = nullptr;
    std::optional<Trainer> trainer_;
};

}  // namespace quadrille
