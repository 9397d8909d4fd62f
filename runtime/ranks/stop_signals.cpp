// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/stop_signals.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace quadrille {
namespace {

constexpr std::chrono::milliseconds kPoll{50};

// A handler has no object: what it writes must be reachable without one, and lock-free.
std::atomic<int> signals_seen{0};
std::atomic<int> last_signal{0};
std::atomic<bool> installed{false};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
    if (signal != SIGXCPU || signals_seen.load(std::memory_order_relaxed) == 0) {
        signals_seen.fetch_add(1, std::memory_order_relaxed);
    }
    last_signal.store(signal, std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals(int code) : code_(code) {
    require(!installed.exchange(true), "one StopSignals at a time");
    signals_seen.store(0);
    last_signal.store(0);
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;  // reads and writes in progress must not fail for it
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) {
        const bool failed = sigaction(kSignals[i], nullptr, &previous_[i]) != 0;
        if (kSignals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN) continue;
        if (failed || sigaction(kSignals[i], &action, nullptr) != 0) {
            throw Error(ErrorKind::internal, std::string("sigaction: ") + std::strerror(errno));
        }
    }
    thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
    release();
}

void StopSignals::release() {
    if (!std::exchange(held_, false)) return;
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    released_.notify_all();
    thread_.join();
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
    installed.store(false);
}

void StopSignals::watch() {
    std::unique_lock lock(mutex_);
    while (!leaving_) {
        judge();
        released_.wait_for(lock, kPoll);
    }
}

void StopSignals::judge() {
    const bool asked = limit_ && signals_seen.load(std::memory_order_relaxed) >= *limit_;
    const bool late = end_at_ && Clock::now() >= *end_at_;
    if (!asked && !late) return;
    const std::string why =
        fmt::format("{}: stopped, the same command goes on", asked ? last() : why_at_);
    if (end_) end_(why);
    const std::string line = "quadrille: " + why + "\n";
    // What cannot be written is no reason to stay.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    std::_Exit(code_);
}

void StopSignals::end_through(std::function<void(const std::string& why)> end) {
    const std::lock_guard lock(mutex_);
    end_ = std::move(end);
}

void StopSignals::end_at(Clock::time_point time, const std::string& why) {
    const std::lock_guard lock(mutex_);
    end_at_ = time;
    why_at_ = why;
}

void StopSignals::heed() {
    const std::lock_guard lock(mutex_);
    limit_.reset();
    end_at_.reset();
}

void StopSignals::end_after(int signals) {
    const std::lock_guard lock(mutex_);
    limit_ = signals_seen.load(std::memory_order_relaxed) + signals;
}

Stop StopSignals::wish() const {
    return static_cast<Stop>(std::min(signals_seen.load(std::memory_order_relaxed), 2));
}

Stop StopSignals::agreed(Communicator& comm) const {
    return static_cast<Stop>(comm.max_host(static_cast<int64_t>(wish())));
}

std::string StopSignals::last() const {
    const int signal = last_signal.load(std::memory_order_relaxed);
    return signal == 0 ? "" : fmt::format("signal {} ({})", signal, ::strsignal(signal));
}

}  // namespace quadrille
