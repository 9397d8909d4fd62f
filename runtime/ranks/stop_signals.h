// SPDX-License-Identifier: Apache-2.0
// Requests to stop by signal. SIGINT, SIGTERM and SIGUSR1 count alike: the first asks to drain
// (finish the running records, admit no more), the second to stop at the next step.
#pragma once

#include "runtime/ranks/comm.h"

#include <array>
#include <csignal>
#include <cstdint>

namespace quadrille {

enum class Stop : int64_t { none = 0, drain = 1, now = 2 };

// Receives the signals while it lives; one object in the process. Made when the step loop begins:
// before that, and after its end, a signal ends the process as it would any other.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    // What this rank was asked for so far.
    Stop wish() const;
    // The strongest wish of any rank: collective, so that all ranks act on it at the same step.
    Stop agreed(Communicator& comm) const;
    // The last signal this rank got, 0: none.
    int signal() const;

  private:
    static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGUSR1};
    std::array<struct sigaction, 3> previous_{};
};

}  // namespace quadrille
