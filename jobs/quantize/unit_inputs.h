// SPDX-License-Identifier: Apache-2.0
// What the calibration rows are to one unit of a pack: the inputs of its matrices, whose Hessians
// the quantizer wants, then the way through the unit as it was quantized.
#pragma once

#include "jobs/quantize/pack_plan.h"
#include "runtime/calibration/calibration_rows.h"
#include "runtime/calibration/input_sum.h"
#include "runtime/calibration/moe_inputs.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// All of it outlives its users.
struct CalibrationModel {
    Backend& backend;
    const ModelConfig& config;
    std::string prefix;     // of the text model
    CalibrationRows* rows;  // nullptr: there are none
};

class UnitInputs {
  public:
    // Runs the rows through the unit with the source's weights and looks at what the matrices of
    // `own` tasks are given; the streams stay as they are. Nothing is done without rows.
    UnitInputs(const CalibrationModel& model, const Checkpoint& source, const PlannedUnit& unit,
               const std::vector<const PlannedTask*>& own);

    // The sums of the inputs of an own task's matrices; nullptr: no row reaches one. Valid until
    // the next call.
    std::vector<const InputSum*> of(const PlannedTask& task);

  private:
    void observe(const Checkpoint& source, const PlannedUnit& unit,
                 const std::vector<const PlannedTask*>& own);
    void observe_head(const Checkpoint& source, const PlannedTask& task);

    CalibrationModel model_;
    std::map<std::string, InputSum> sums_;  // by task
    std::optional<MoeInputs> moe_;
    std::optional<ExpertSums> expert_;
};

// The rows go through the unit; `checkpoint` holds its tensors.
void pass_unit(const CalibrationModel& model, const Checkpoint& checkpoint,
               const PlannedUnit& unit);
// Not they but each of `streams` in their place; the unit is loaded once.
void pass_unit(const CalibrationModel& model, const Checkpoint& checkpoint, const PlannedUnit& unit,
               std::span<std::vector<float>> streams);

// Streams behind the last layer to final rows.
class FinalRows {
  public:
    FinalRows(const CalibrationModel& model, const Checkpoint& checkpoint);
    // (rows, hidden) in backend memory, valid until the next call.
    View<const float> of(View<float> streams) const;

  private:
    const CalibrationModel& model_;
    WeightLoader loader_;
    const float* norm_;
    Array<float> rows_;
};

}  // namespace quadrille
