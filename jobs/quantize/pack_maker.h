// SPDX-License-Identifier: Apache-2.0
// PackMaker: the files of a pack, one by one, by all ranks.
#pragma once

#include "jobs/quantize/pack_files.h"
#include "jobs/quantize/pack_progress.h"
#include "jobs/quantize/task_quantizer.h"
#include "jobs/quantize/unit_inputs.h"
#include "runtime/ranks/comm.h"

namespace quadrille {

class PackMaker {
  public:
    // All outlive this.
    PackMaker(Communicator& world, const Checkpoint& source, const TaskQuantizer& quantizer,
              PackProgress& progress)
        : world_(world), source_(source), quantizer_(quantizer), progress_(progress) {}

    // The file of `unit` in `files`, made where it is not there. `model`: its rows stand before
    // the unit. Error{io}: this rank does not see what another wrote. Collective.
    Checkpoint make(const PlannedUnit& unit, const PackFiles& files,
                    const CalibrationModel& model) const;

  private:
    void quantize(const PlannedUnit& unit, const PackFiles& files,
                  const CalibrationModel& model) const;

    Communicator& world_;
    const Checkpoint& source_;
    const TaskQuantizer& quantizer_;
    PackProgress& progress_;
};

}  // namespace quadrille
