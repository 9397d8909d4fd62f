// SPDX-License-Identifier: Apache-2.0
// What the groups of a run have come to once none of them works any more, and what that makes of
// the run.
#pragma once

#include "io/results/group_writer.h"
#include "jobs/generate/group_board.h"
#include "jobs/generate/run_files.h"
#include "jobs/generate/start_figures.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/stop_signals.h"

#include <cstdint>
#include <vector>

namespace quadrille {

// One group's, from its leader; zeros from other ranks. Goes from rank to rank as bytes.
struct GroupEnd {
    GroupParts parts;
    int64_t computed = 0;    // records, in this start
    int64_t errors = 0;      // records; those of earlier starts count for the leader of the run
    GroupProgress progress;  // as on the board
    StartFigures figures;
    Stop stop = Stop::none;
};

struct RunEnd {
    std::vector<GroupEnd> groups;  // by rank
    Stop stop = Stop::none;
    int64_t left = 0;    // records that nobody has done
    int64_t errors = 0;  // records
    GroupProgress done;
    StartFigures figures;            // sums over groups
    std::vector<Latency> latencies;  // of all groups, for the run's leader

    // Asked to end before its records did: the same command goes on.
    bool resumable() const { return stop != Stop::none && left > 0; }
};

// Those of all groups, on rank 0; with one group, its own.
std::vector<Latency> gather_latencies(Communicator& world, const std::vector<Latency>& own,
                                      bool several);

// Collective over all ranks. `remaining`: records that the run had before it.
RunEnd gather_ends(Communicator& world, const GroupEnd& own, int64_t remaining);

}  // namespace quadrille
