// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/stop_signals.h"

#include "kernels/error.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace quadrille {
namespace {

// A handler has no object: what it writes must be reachable without one, and lock-free.
std::atomic<int> signals_seen{0};
std::atomic<int> last_signal{0};
std::atomic<bool> installed{false};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
    signals_seen.fetch_add(1, std::memory_order_relaxed);
    last_signal.store(signal, std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals() {
    require(!installed.exchange(true), "one StopSignals at a time");
    signals_seen.store(0);
    last_signal.store(0);
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;  // reads and writes in progress must not fail for it
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) {
        if (sigaction(kSignals[i], &action, &previous_[i]) != 0) {
            throw Error(ErrorKind::internal, std::string("sigaction: ") + std::strerror(errno));
        }
    }
}

StopSignals::~StopSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
    installed.store(false);
}

Stop StopSignals::wish() const {
    return static_cast<Stop>(std::min(signals_seen.load(std::memory_order_relaxed), 2));
}

Stop StopSignals::agreed(Communicator& comm) const {
    return static_cast<Stop>(comm.max_host(static_cast<int64_t>(wish())));
}

int StopSignals::signal() const {
    return last_signal.load(std::memory_order_relaxed);
}

}  // namespace quadrille
