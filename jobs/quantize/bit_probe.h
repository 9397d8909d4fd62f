// SPDX-License-Identifier: Apache-2.0
// BitProbe: what quantizing one class of one layer alone does to the model's output, for all
// classes of all layers, in one pass over the model: behind its unit each goes on as calibration
// rows of its own, and the layers that follow are loaded once for all of them.
#pragma once

#include "jobs/quantize/bit_groups.h"
#include "jobs/quantize/pack_maker.h"
#include "jobs/quantize/pack_plan.h"

#include <cstdint>
#include <list>
#include <vector>

namespace quadrille {

// A pack of which `plan` quantizes some classes; at most one of each unit.
struct ProbedPack {
    const PackPlan& plan;
    const PackFiles& files;
};

class BitProbe {
  public:
    // `sequences`: the calibration rows that divergences are measured on. All outlive this.
    BitProbe(Communicator& world, const CalibrationModel& model, const Checkpoint& source,
             CalibrationRows::Sequences sequences, int32_t threads);

    // The divergence of every group of the packs, in the order of the model, without `bits`.
    // Collective; the same on every rank, and for any number of them.
    std::vector<BitGroup> measure(const std::vector<PlannedUnit>& units,
                                  const std::vector<ProbedPack>& packs, const PackMaker& maker);

    // Sequences spread over all calibration rows, about kRows rows of them.
    static CalibrationRows::Sequences choose(const CalibrationRows::Sequences& all);

  private:
    static constexpr int64_t kRows = 4096;

    // A group's rows; on the rank that holds them.
    struct Variant {
        size_t group = 0;
        std::vector<float> streams{};
        const Checkpoint* head = nullptr;  // a quantized one; nullptr: the source's
    };
    void begin_variants(const PlannedUnit& unit, Checkpoint file);
    void pass(const PlannedUnit& unit);
    void compare();

    Communicator& world_;
    CalibrationModel all_;
    const Checkpoint& source_;
    CalibrationRows rows_;    // measured on; the source's own streams
    CalibrationModel model_;  // with rows_
    int32_t threads_;
    std::vector<BitGroup> groups_;
    std::vector<Variant> variants_;
    std::list<Checkpoint> heads_;
};

}  // namespace quadrille
