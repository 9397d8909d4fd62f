// SPDX-License-Identifier: Apache-2.0
// The loop of one group of ranks: records in, passes, generations out, until nobody has a record
// left or the run is to stop. Groups run side by side and wait for each other only at the end.
#pragma once

#include "jobs/generate/group_board.h"
#include "jobs/generate/record_queue.h"
#include "jobs/generate/run_files.h"
#include "jobs/generate/start_figures.h"
#include "jobs/generate/stop_plan.h"
#include "jobs/roofline/timed_comm.h"
#include "runtime/engine.h"
#include "runtime/log.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// How far the leader of a group has come: totals of its files, tokens of its engine.
GroupProgress progress_of(const RunFiles& files, const EngineStats& stats);

class RunLoop {
  public:
    // Everything outlives the run.
    struct Around {
        Communicator& comm;     // of the group, on host memory
        TimedComm& model_comm;  // of the model
        Position& position;
        Log& log;
        RunFiles* files;    // nullptr on ranks that lead no group
        GroupBoard* board;  // nullptr where there is one group
        // Called on leaders as records are finished, with the progress of all groups.
        std::function<void(const GroupProgress& all, Stop stop)> show;
        // Called on leaders when records are committed, and once a minute.
        std::function<void(const LoopTimes& times)> keep_figures;
    };
    // `slots`: records that `runner` is given at once.
    RunLoop(RecordRunner& runner, StopPlan& plan, int32_t slots, const Around& around);

    // Collective over the group. What is finished is committed at the end.
    Stop run();
    const LoopTimes& times() const { return times_; }
    // Those of one decode pass; empty: none was seen, as in graphs.
    const CollectiveCounts& pass_collectives() const { return pass_collectives_; }

  private:
    bool leads() const { return around_.files != nullptr; }
    bool wants_more() const;
    void begin_alone();
    void run_records();
    void step();
    void wait_for_groups();
    void heed_stop();
    void drain(const std::string& reason);
    bool refill();
    void deliver();
    void show();
    void save();
    void keep_figures();

    RecordRunner& runner_;
    StopPlan& plan_;
    int64_t slots_;
    Around around_;
    std::optional<RecordQueue> queue_;  // of leaders
    bool more_ = true;                  // there may be records that nobody has taken
    // A record that must run alone: it waits until no other runs, and no other begins before its
    // end.
    bool alone_ = false;
    std::vector<Prompt> waiting_;
    Stop stop_ = Stop::none;
    LoopTimes times_;
    CollectiveCounts pass_collectives_;
    std::chrono::steady_clock::time_point kept_ = std::chrono::steady_clock::now();
};

}  // namespace quadrille
