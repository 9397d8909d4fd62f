// SPDX-License-Identifier: Apache-2.0
// What a rank's machine can do at its best, measured now: how fast it reads memory, how fast it
// decodes EXL3 weights, how long a collective takes between ranks that do nothing else. The floor
// of docs/design.md §10 is made of these. All ranks measure at once, since they share memory, and
// the slowest counts for all.
#pragma once

#include "jobs/roofline/timed_comm.h"
#include "kernels/backend.h"
#include "runtime/model/work_bound.h"
#include "runtime/ranks/comm.h"

#include <functional>
#include <map>
#include <set>
#include <span>

namespace quadrille {

// What the device says of itself (Backend::best_read ...) or, where ops do better or it says
// nothing, what these show: the better of a copy of 128 MiB (bytes read and written) and a one-row
// product with a fp32 matrix of 256 MiB, and for each of `forms` (the same on all ranks) the best
// one-row product with a matrix that a cache holds or with a large one. Under a second. Collective.
MachineRates measure_rates(Backend& backend, Communicator& comm, const std::set<Storage>& forms);

// Seconds of collectives when no rank waits for another's work; each size is measured once.
class CollectiveTimes {
  public:
    CollectiveTimes(Backend& backend, Communicator& comm) : backend_(backend), comm_(comm) {}
    // All of `counts`, the same on all ranks. Collective.
    double seconds(const CollectiveCounts& counts);

  private:
    double measure(const Collective& collective);

    Backend& backend_;
    Communicator& comm_;
    std::map<Collective, double> known_;
};

// Least seconds that one call of `work` takes, `work` being queued again and again.
double best_seconds(Backend& backend, const std::function<void()>& work);

// The EXL3 forms among some ops.
std::set<Storage> exl3_forms(std::span<const OpWork> ops);

}  // namespace quadrille
