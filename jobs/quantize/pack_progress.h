// SPDX-License-Identifier: Apache-2.0
// PackProgress: how far a pack is, by weights, and the time that is left.
#pragma once

#include "jobs/quantize/pack_plan.h"
#include "runtime/log.h"

#include <chrono>
#include <cstdint>

namespace quadrille {

class PackProgress {
  public:
    // Silent where `tells` is false.
    PackProgress(Log& log, bool tells) : log_(log), tells_(tells) {}

    void expect(int64_t weights) { all_ += weights; }
    // `weights` of the unit are done, about. Told once in a while.
    void within(const PlannedUnit& unit, int64_t weights);
    // `found`: an earlier start made it, which says nothing of the speed.
    void finish(const PlannedUnit& unit, bool found);

  private:
    using Clock = std::chrono::steady_clock;

    void tell(const PlannedUnit& unit, int64_t weights);

    Log& log_;
    bool tells_;
    Clock::time_point begin_ = Clock::now();
    Clock::time_point told_ = Clock::now();
    int64_t all_ = 0;
    int64_t done_ = 0;   // of finished units
    int64_t found_ = 0;  // of those, made by earlier starts
};

}  // namespace quadrille
