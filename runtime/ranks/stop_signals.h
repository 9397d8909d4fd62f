// SPDX-License-Identifier: Apache-2.0
// Requests to stop by signal: SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU count alike.
// Before the step loop a signal ends the process. In the loop the first asks to drain (finish the
// running records, admit no more), the second to stop at the next step.
#pragma once

#include "runtime/ranks/comm.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace quadrille {

enum class Stop : int64_t { none = 0, drain = 1, now = 2 };

// Receives the signals while it lives; one object in the process, made first of all. SIGHUP stays
// ignored where it was (nohup). SIGXCPU comes once a second, and counts as a first signal only.
class StopSignals {
  public:
    using Clock = std::chrono::steady_clock;

    // Until heed() a thread ends the process with `code` within 0.1 s of a signal.
    explicit StopSignals(int code);
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    // Gives the signals back: they do what they did before.
    void release();
    // The process ends through `end` (from the thread; it must not return) instead of by itself,
    // which ends other ranks too. {}: by itself again.
    void end_through(std::function<void(const std::string& why)> end);
    // Without a signal the process ends at that time all the same, because of `why`.
    void end_at(Clock::time_point time, const std::string& why);
    // From here on signals are wishes that somebody asks for, and the time passes.
    void heed();
    // So many more signals end the process again.
    void end_after(int signals);

    // What this rank was asked for so far.
    Stop wish() const;
    // The strongest wish of any rank: collective, so that all ranks act on it at the same step.
    Stop agreed(Communicator& comm) const;
    // The last signal this rank got, "signal 15 (Terminated)"; "": none.
    std::string last() const;

  private:
    void watch();
    void judge();  // with the mutex held

    static constexpr std::array<int, 6> kSignals = {SIGINT,  SIGTERM, SIGHUP,
                                                    SIGUSR1, SIGUSR2, SIGXCPU};
    int code_;
    bool held_ = true;
    std::array<struct sigaction, kSignals.size()> previous_{};
    std::mutex mutex_;
    std::condition_variable released_;
    bool leaving_ = false;
    std::optional<int> limit_ = 1;  // signals in all that end the process; absent: any number
    std::optional<Clock::time_point> end_at_;
    std::string why_at_;
    std::function<void(const std::string&)> end_;
    std::thread thread_;
};

}  // namespace quadrille
