// SPDX-License-Identifier: Apache-2.0
#include "jobs/roofline/roofline.h"

#include "jobs/roofline/machine_rates.h"
#include "kernels/buffer.h"
#include "kernels/error.h"

#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kRoom = int64_t{512} << 20;  // bytes: more than measure_rates takes at once

bool has_room(Backend& backend) {
    try {
        const Buffer room(backend, kRoom);
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

double Roofline::seconds() const {
    double sum = collectives;
    for (const auto& [kind, floor] : ops) sum += floor;
    return sum;
}

std::optional<Roofline> measure_roofline(Backend& backend, Communicator& comm,
                                         const StepModel& model, const MeanPass& pass,
                                         const CollectiveCounts& pass_counts) {
    if (comm.max_host(has_room(backend) ? 0 : 1) != 0) return std::nullopt;
    const std::vector<OpWork> ops = step_work(model, {.contexts = {0}, .k = pass.k});
    const MachineRates rates = measure_rates(backend, comm, exl3_forms(ops));
    Roofline roofline;
    roofline.ops = floor_of(model, rates, pass);
    // Ranks count alike, or none of them measures.
    const bool counted = comm.max_host(pass_counts.empty() ? 1 : 0) == 0;
    if (counted && comm.size() > 1) {
        roofline.collectives = CollectiveTimes(backend, comm).seconds(pass_counts);
    }
    return roofline;
}

}  // namespace quadrille
