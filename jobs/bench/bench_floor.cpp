// SPDX-License-Identifier: Apache-2.0
#include "jobs/bench/bench_floor.h"

#include <vector>

namespace quadrille {

namespace {

void add_share(std::map<WorkKind, WorkSum>& work, const std::vector<OpWork>& ops, double share) {
    for (const auto& [kind, sum] : sums_by_kind(ops)) {
        WorkSum& total = work[kind];
        total.weights += share * sum.weights;
        total.state += share * sum.state;
        total.activations += share * sum.activations;
        total.decoded += share * sum.decoded;
    }
}

}  // namespace

void set_floor(BenchRun& run, const StepModel& model, const MachineRates& rates,
               std::span<const int64_t> passes_by_records, int64_t context) {
    const auto steps = static_cast<double>(run.draft_steps);
    const double pending = steps > 0 ? 1.0 + static_cast<double>(run.accepted) / steps : 1.0;
    const auto passes = static_cast<double>(run.stats.decode_steps);
    run.work.clear();
    run.floors.clear();
    run.prefill_floors.clear();
    run.decode_floor = 0;
    for (size_t records = 1; records < passes_by_records.size(); ++records) {
        if (passes_by_records[records] == 0) continue;
        const double share = static_cast<double>(passes_by_records[records]) / passes;
        const std::vector<OpWork> ops =
            step_work(model, {.contexts = std::vector<int64_t>(records, context),
                              .k = static_cast<int32_t>(run.k),
                              .pending = pending});
        run.decode_floor += share * floor_seconds(ops, rates);
        for (const auto& [kind, floor] : floors_by_kind(ops, rates)) {
            run.floors[kind] += share * floor;
        }
        add_share(run.work, ops, share);
    }
    run.prefill_floor = 0;
    if (run.prefill_passes == 0) return;
    const auto prefills = static_cast<double>(run.prefill_passes);
    const double rows = static_cast<double>(run.stats.prefill_tokens) / prefills;
    const std::vector<OpWork> ops = prefill_work(model, rows, {0}, run.k > 0);
    run.prefill_floor = prefills * floor_seconds(ops, rates);
    for (const auto& [kind, floor] : floors_by_kind(ops, rates)) {
        run.prefill_floors[kind] = prefills * floor;
    }
}

}  // namespace quadrille
