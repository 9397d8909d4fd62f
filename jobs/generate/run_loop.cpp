// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_loop.h"

#include "runtime/ranks/record_block.h"
#include "runtime/seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kSlice = 256;                 // records a leader reads at once
constexpr std::chrono::milliseconds kPoll{20};  // while other groups run
constexpr double kKeepFigures = 60;             // seconds

// Adds the time of its life.
class Lap {
  public:
    explicit Lap(double& seconds) : seconds_(seconds) {}
    ~Lap() { seconds_ += seconds_since(start_); }
    Lap(const Lap&) = delete;
    Lap& operator=(const Lap&) = delete;

  private:
    double& seconds_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

GroupProgress progress_of(const RunFiles& files, const EngineStats& stats) {
    const ResultSummary& totals = files.totals();
    return {.records = totals.records,
            .tokens = stats.emitted,
            .steps = totals.steps,
            .accepted = totals.accepted};
}

RunLoop::RunLoop(RecordRunner& runner, StopPlan& plan, int32_t slots, const Around& around)
    : runner_(runner), plan_(plan), slots_(slots), around_(around) {
    if (!leads()) return;
    if (around_.board == nullptr) {
        queue_.emplace(around_.files->done(), around_.files->alone(), kSlice);
        return;
    }
    // Few at once, so that no group has much left when the others have nothing.
    queue_.emplace(around_.files->done(), around_.files->alone(),
                   std::clamp<int64_t>(slots_ / 4, 1, kSlice),
                   [board = around_.board](int64_t records) { return board->take(records); });
}

Stop RunLoop::run() {
    run_records();
    if (leads()) save();
    if (around_.board != nullptr) wait_for_groups();
    return stop_;
}

void RunLoop::run_records() {
    while (more_ || alone_ || !runner_.idle()) {
        heed_stop();
        if (stop_ == Stop::now) return;
        while (wants_more()) {
            more_ = refill();
            deliver();                  // records with an error are finished as they are read
            if (runner_.idle()) break;  // and many of them are no reason not to hear
        }
        if (alone_ && runner_.idle()) begin_alone();
        step();
        deliver();
        alone_ = alone_ && !(runner_.idle() && waiting_.empty());
    }
}

// The collectives of a decode pass are looked at now and then: of the first, second, fourth,
// eighth.
void RunLoop::step() {
    const int64_t before = runner_.stats().decode_steps;
    const bool looks = std::has_single_bit(static_cast<uint64_t>(before + 1));
    if (looks) around_.model_comm.take_counts();
    runner_.step();
    if (!looks || runner_.stats().decode_steps == before) return;
    CollectiveCounts counts = around_.model_comm.take_counts();
    if (!counts.empty()) pass_collectives_ = std::move(counts);
}

bool RunLoop::wants_more() const {
    return more_ && !alone_ && runner_.in_flight() < slots_;
}

// Saved first: this record may end the process once more.
void RunLoop::begin_alone() {
    if (leads()) save();
    for (Prompt& prompt : std::exchange(waiting_, {})) runner_.submit(std::move(prompt));
}

// The ranks of the group still hear signals, and move.
void RunLoop::wait_for_groups() {
    if (leads()) around_.board->end(progress_of(*around_.files, runner_.stats()));
    const Lap lap(times_.idle);
    while (stop_ != Stop::now) {
        const bool all_ended = leads() && around_.board->all_ended();
        if (around_.comm.max_host(all_ended ? 1 : 0) != 0) return;
        around_.position.op("wait");
        std::this_thread::sleep_for(kPoll);
        heed_stop();
        show();
    }
}

// Collective over the group, once a step.
void RunLoop::heed_stop() {
    const bool hears = leads() && around_.board != nullptr;
    const Stop heard = hears ? around_.board->stop() : Stop::none;
    const Stop before = std::exchange(stop_, plan_.agree(around_.comm, heard));
    if (stop_ == before) return;
    if (hears) around_.board->exchange(progress_of(*around_.files, runner_.stats()), stop_);
    if (before == Stop::none) drain(plan_.reason());
}

// Saves at once, running records too: the launcher may leave its ranks no more than a second.
void RunLoop::drain(const std::string& reason) {
    runner_.drop_queued();
    waiting_.clear();
    more_ = false;
    if (!leads()) return;
    save();
    around_.log.notice(fmt::format("{}: no record is started any more, {} are still running{}",
                                   reason, runner_.in_flight(),
                                   around_.board == nullptr ? "" : " in the first group"));
}

// The next records that no earlier start has done and no other group has taken; false: there are
// none.
bool RunLoop::refill() {
    const Lap lap(times_.reading);
    around_.position.op("read");
    std::vector<Prompt> prompts;
    RecordQueue::Slice slice;
    if (leads()) {
        slice = queue_->next();
        if (slice.count > 0) prompts = around_.files->read(slice);
    }
    prompts = broadcast_records(around_.comm, 0, std::move(prompts));
    const bool more = !prompts.empty();
    alone_ = around_.comm.max_host(slice.alone ? 1 : 0) != 0;
    if (alone_) {
        waiting_ = std::move(prompts);
        return more;
    }
    for (Prompt& prompt : prompts) runner_.submit(std::move(prompt));
    return more;
}

void RunLoop::deliver() {
    std::vector<Generation> finished = runner_.take_finished();
    if (!leads()) return;
    {
        const Lap lap(times_.writing);
        around_.position.aside("write");
        around_.files->add(std::move(finished));
    }
    if (seconds_since(kept_) > kKeepFigures) keep_figures();
    show();
}

void RunLoop::keep_figures() {
    kept_ = std::chrono::steady_clock::now();
    around_.keep_figures(times_);
}

void RunLoop::show() {
    if (!leads()) return;
    GroupProgress all = progress_of(*around_.files, runner_.stats());
    if (around_.board != nullptr) {
        around_.board->exchange(all, stop_);
        all += around_.board->others();
    }
    around_.show(all, stop_);
}

void RunLoop::save() {
    {
        const Lap lap(times_.writing);
        around_.position.aside("write");
        around_.files->commit();
        around_.files->keep(runner_.unfinished());
    }
    keep_figures();
}

}  // namespace quadrille
