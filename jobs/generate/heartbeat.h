// SPDX-License-Identifier: Apache-2.0
// --heartbeat FILE: the run's progress as one JSON object, for programs that watch it. The file is
// replaced as a whole, every 10 s and whenever the state changes.
#pragma once

#include "runtime/log.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace quadrille {

class Heartbeat {
  public:
    using Clock = std::chrono::steady_clock;

    // `file` "": does nothing. Error{io} where it cannot be written; later failures are passed
    // over, for nothing depends on the file.
    explicit Heartbeat(std::string file = "");

    // `state`: "running", "draining", "assembling", "done", "stopped". Rates count from the first
    // call with a number of tokens.
    void beat(const std::string& state, const Progress& progress,
              Clock::time_point now = Clock::now());

  private:
    void write(const std::string& text) const;

    std::filesystem::path file_;
    std::string state_;
    std::optional<Progress> first_;
    Clock::time_point start_;
    Clock::time_point last_;
};

}  // namespace quadrille
