// SPDX-License-Identifier: Apache-2.0
// A job that steps until it is told to end, for job_test.py: each rank prints its pid, then all
// meet at every step; rank 0 says when it drains and how it ends. job_helper WAY LIMIT: run (until
// a signal), stuck (the last rank hangs outside MPI at step 20), stuck-group (so, but only the
// upper half of the ranks waits for it, and the others go on), early (ranks but 0 end at once, rank
// 0 works on for LIMIT + 2 s).
#include "kernels/error.h"
#include "runtime/ranks/fatal.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"
#include "runtime/ranks/stop_signals.h"
#include "runtime/ranks/watchdog.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace quadrille;
using namespace std::chrono_literals;

constexpr int kDrained = 75;

int group_of(const MpiSession& session, int rank) {
    return rank >= session.size() / 2 ? 1 : 0;
}

int run(MpiSession& session, Communicator& comm, Position& position, StopSignals& signals,
        const std::string& way) {
    signals.heed();
    int64_t drain_steps = 0;
    for (int64_t step = 0;; ++step) {
        position.enter(step, "meet");
        const Stop stop = signals.agreed(comm);
        if (step == 0) fmt::print("rank {} pid {}\n", session.rank(), getpid());
        std::fflush(stdout);
        position.layer(2);
        position.op("work");
        if (way.starts_with("stuck") && step == 20 && session.rank() == session.size() - 1) {
            std::this_thread::sleep_for(1h);
        }
        std::this_thread::sleep_for(10ms);
        // Draining takes 1 s; a second signal cuts it short.
        if (stop == Stop::drain && ++drain_steps == 1 && session.rank() == 0) {
            fmt::print("draining\n");
        }
        if (stop == Stop::now || drain_steps == 100) {
            if (session.rank() == 0) {
                fmt::print("{} after {} steps\n", stop == Stop::now ? "stopped" : "drained",
                           drain_steps);
            }
            return kDrained;
        }
    }
}

}  // namespace

int main(int, char** argv) {
    const std::string way = argv[1];
    const std::chrono::seconds limit(std::stoi(argv[2]));
    const Launcher launcher;
    StopSignals signals(kDrained);
    MpiSession session;
    Position position;
    Fatal fatal({session.rank(), session.size(), session.host()}, position, &MpiSession::abort);
    const bool apart = way == "stuck-group";
    std::unique_ptr<Communicator> half;
    std::vector<int> groups;
    if (apart) {
        half = session.split(group_of(session, session.rank()), session.rank());
        for (int rank = 0; rank < session.size(); ++rank) groups.push_back(group_of(session, rank));
    }
    const Watchdog watchdog(session, position, fatal, launcher, limit, groups);
    return fatal.guard([&] {
        if (way != "early")
            return run(session, apart ? *half : session.world(), position, signals, way);
        position.enter(0, "end");
        if (session.rank() == 0) std::this_thread::sleep_for(limit + 2s);
        return 0;
    });
}
