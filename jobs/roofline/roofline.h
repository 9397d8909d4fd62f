// SPDX-License-Identifier: Apache-2.0
// What the mean decode pass of a finished run takes at best on this machine, measured after it.
#pragma once

#include "jobs/roofline/step_floor.h"
#include "jobs/roofline/timed_comm.h"
#include "kernels/backend.h"
#include "runtime/model/work_bound.h"
#include "runtime/ranks/comm.h"

#include <map>
#include <optional>

namespace quadrille {

struct Roofline {
    std::map<WorkKind, double> ops;  // seconds
    double collectives = 0;          // seconds; 0: one rank, or none were seen (graphs)

    double seconds() const;
};

// Collective over `comm`, the ranks of one model; under a second. `pass_counts`: collectives of a
// decode pass. Nothing where the device has no room left to measure in.
std::optional<Roofline> measure_roofline(Backend& backend, Communicator& comm,
                                         const StepModel& model, const MeanPass& pass,
                                         const CollectiveCounts& pass_counts);

}  // namespace quadrille
