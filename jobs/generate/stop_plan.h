// SPDX-License-Identifier: Apache-2.0
// When a run ends before its records do: asked by signals, out of time, or when a drain takes too
// long (docs/design.md §8).
#pragma once

#include "runtime/ranks/comm.h"
#include "runtime/ranks/stop_signals.h"

#include <chrono>
#include <optional>
#include <string>

namespace quadrille {

class StopPlan {
  public:
    using Clock = std::chrono::steady_clock;

    // `max_time`: the run ends that long after `start` at the latest (as steps and commits go), so
    // it drains `grace` before, though never in the first half; 0: any time. A drain lasts `grace`
    // at most. What has not come to the step loop when the drain is due ends then. `signals`
    // outlive this.
    StopPlan(StopSignals& signals, Clock::time_point start, std::chrono::seconds max_time,
             std::chrono::seconds grace);

    // Collective, once a step; the same answer on all ranks: none, then drain, then now. `heard`:
    // what ranks beyond `comm` wish, as far as this rank knows.
    Stop agree(Communicator& comm, Stop heard = Stop::none, Clock::time_point now = Clock::now());

    // Why, as far as this rank knows: "signal 15 (Terminated)".
    std::string reason() const;

  private:
    Stop wish(Clock::time_point now) const;

    StopSignals& signals_;
    std::chrono::seconds grace_;
    std::optional<Clock::time_point> drain_at_;
    std::optional<Clock::time_point> end_at_;
    Stop agreed_ = Stop::none;
    bool out_of_time_ = false;
};

}  // namespace quadrille
