// SPDX-License-Identifier: Apache-2.0
// Watchdog: a thread per rank that tells all others once a second where its rank is, on a
// communicator of its own. A rank that falls silent (stopped, swapped out, host lost), that stands
// still while the others wait for it, or whose launcher is gone, ends the job with an error that
// names it, instead of a hang. In start-up, where ranks do different things, each judges itself: it
// hangs when it works, as Position says, and neither gives a sign of life nor uses the processor.
#pragma once

#include "runtime/ranks/fatal.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"
#include "runtime/ranks/position.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace quadrille {

class Watchdog {
  public:
    using Clock = std::chrono::steady_clock;

    // Collective over all ranks. The job ends within `limit` of a rank's last sign of life (three
    // quarters of it are waited for, at least 4 s are needed to tell a pause from an end). No op
    // may take longer. Ranks of a group (a number for each rank; {}: all are one) wait for each
    // other, groups do not. `position` and `fatal` outlive this.
    Watchdog(const MpiSession& session, const Position& position, Fatal& fatal, Launcher launcher,
             std::chrono::seconds limit, std::vector<int> group_of_rank = {});
    // Says good-bye and waits for that of the others, still watching them.
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

  private:
    struct Message {
        int64_t step = -1;
        int64_t marks = 0;
        int32_t layer = -1;
        int32_t leaving = 0;  // 1: the last message of this rank
        char op[40] = {};
    };
    struct Peer {
        Message last;
        Clock::time_point heard;  // any message
        Clock::time_point moved;  // marks or step changed
        bool left = false;
    };

    void run();
    Message own_message(bool leaving) const;
    void listen(Clock::time_point now);
    // True when everybody has our last message.
    bool tell(bool leaving);
    void judge(Clock::time_point now);
    // This rank in its start-up.
    void judge_own(Clock::time_point now);
    void judge_group(int group, Clock::time_point now, Clock::duration turn);
    bool all_left() const;
    // Ends the job because of that rank; `what` is said of it.
    [[noreturn]] void report(int rank, const std::string& what, Clock::duration time);

    Mailbox mailbox_;
    std::vector<std::string> hosts_;
    std::vector<int> groups_;  // of every rank
    const Position& position_;
    Fatal& fatal_;
    Launcher launcher_;
    Clock::duration patience_;
    std::vector<Peer> peers_;  // of every rank, our own too
    std::vector<bool> told_good_bye_;
    int64_t signs_ = 0;       // of our position, when it last moved in its start-up
    Clock::duration used_{};  // processor time of the process then
    Clock::time_point moved_;
    std::atomic<bool> leaving_{false};
    std::thread thread_;
};

}  // namespace quadrille
