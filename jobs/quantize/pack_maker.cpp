// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_maker.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

namespace quadrille {

Checkpoint PackMaker::make(const PlannedUnit& unit, const PackFiles& files,
                           const CalibrationModel& model) const {
    std::optional<Checkpoint> file = files.finished(unit);
    // One look for all: a file that comes while others look is none.
    const bool found = world_.max_host(file ? 0 : 1) == 0;
    if (!found) {
        quantize(unit, files, model);
        file = files.finished(unit);
        if (!file) {
            throw Error(ErrorKind::io,
                        fmt::format("{}: not seen by this rank, or damaged: --out must lie where "
                                    "all ranks write",
                                    (files.out() / unit.file).string()));
        }
    }
    progress_.finish(unit, found);
    return std::move(*file);
}

// Tasks are dealt out in turn, whatever earlier starts have done of them.
void PackMaker::quantize(const PlannedUnit& unit, const PackFiles& files,
                         const CalibrationModel& model) const {
    std::vector<const PlannedTask*> own;
    const auto ranks = static_cast<size_t>(world_.size());
    for (auto i = static_cast<size_t>(world_.rank()); i < unit.tasks.size(); i += ranks) {
        if (!files.has_part(unit.tasks[i])) own.push_back(&unit.tasks[i]);
    }
    if (!own.empty()) {
        UnitInputs inputs(model, source_, unit, own);
        int64_t weights = 0;
        for (const PlannedTask* task : own) {
            files.commit(*task, quantizer_.run(*task, inputs.of(*task)));
            weights += task->weights() * static_cast<int64_t>(ranks);
            progress_.within(unit, weights);
        }
    }
    world_.barrier();
    if (world_.rank() == 0) files.assemble(unit, source_);
    world_.barrier();
}

}  // namespace quadrille
