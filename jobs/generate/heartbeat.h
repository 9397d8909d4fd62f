// SPDX-License-Identifier: Apache-2.0
// --heartbeat FILE: the run's progress as one JSON object, for programs that watch it. The file is
// replaced as a whole, every 10 s and whenever the state changes.
#pragma once

#include "runtime/log.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

class Heartbeat {
  public:
    using Clock = std::chrono::steady_clock;

    // The file that `name` stands for, "" for none; io/output.h. Only an earlier heartbeat is
    // replaced. `taken`: the run's inputs and other outputs. Writes nothing.
    static std::filesystem::path check(const std::string& name,
                                       std::vector<std::filesystem::path> taken);

    // `file` "": does nothing. Error{io} where it cannot be written; later failures are passed
    // over, for nothing depends on the file.
    explicit Heartbeat(std::filesystem::path file = {});

    // `state`: "running", "draining", "assembling", "done", "stopped". Rates count from the first
    // call with a number of tokens.
    void beat(const std::string& state, const Progress& progress,
              Clock::time_point now = Clock::now());

  private:
    std::filesystem::path file_;
    std::string state_;
    std::optional<Progress> first_;
    Clock::time_point start_;
    Clock::time_point last_;
};

}  // namespace quadrille
