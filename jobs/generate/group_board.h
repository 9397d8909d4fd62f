// SPDX-License-Identifier: Apache-2.0
// What the groups of one job tell each other while they run, without waiting for each other: which
// records are taken, a wish to stop, how far each is (docs/design.md §7). The leaders of groups use
// it; the numbers lie with rank 0.
#pragma once

#include "runtime/ranks/mpi.h"
#include "runtime/ranks/stop_signals.h"

#include <array>
#include <chrono>
#include <cstdint>

namespace quadrille {

// Counts are of this start.
struct GroupProgress {
    int64_t records = 0;
    int64_t tokens = 0;
    int64_t steps = 0;
    int64_t accepted = 0;

    GroupProgress& operator+=(const GroupProgress& other);
};

class GroupBoard {
  public:
    using Clock = std::chrono::steady_clock;

    // Collective over all ranks, as is destroying it.
    GroupBoard(const MpiSession& session, int groups);

    // Counts `records` more as handed out and returns how many were before.
    int64_t take(int64_t records) { return counters_.fetch_add(records, kTaken); }
    // Tells how far this group is and what it wishes, and hears of the others: now and then, at
    // once where it wishes more than before.
    void exchange(const GroupProgress& own, Stop wish, Clock::time_point now = Clock::now());
    // Tells the others that this group has nothing left to run; once.
    void end(const GroupProgress& own);

    // As of the last exchange.
    Stop stop() const { return stop_; }                      // the strongest wish of any group
    bool all_ended() const { return ended_ == groups_; }     // nobody has anything left to run
    const GroupProgress& others() const { return others_; }  // all groups but this

  private:
    enum Counter { kTaken, kStop, kEnded, kRecords, kTokens, kSteps, kAccepted, kCount };

    void tell(const GroupProgress& own);

    MpiComm comm_;
    SharedCounters counters_;
    int groups_;
    int64_t ended_ = 0;
    Stop told_stop_ = Stop::none;
    Stop stop_ = Stop::none;
    GroupProgress told_;
    GroupProgress others_;
    Clock::time_point last_{};
};

}  // namespace quadrille
