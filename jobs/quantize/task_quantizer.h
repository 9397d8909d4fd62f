// SPDX-License-Identifier: Apache-2.0
// TaskQuantizer: the matrices of one task from the source's weights and what the calibration gave.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "jobs/quantize/pack_files.h"
#include "jobs/quantize/pack_plan.h"
#include "kernels/trellis_encoder.h"
#include "runtime/calibration/input_sum.h"

#include <cstdint>
#include <vector>

namespace quadrille {

struct QuantizeSettings {
    Codebook codebook = Codebook::mcg;
    uint64_t seed = 0;
    int32_t threads = 1;
};

class TaskQuantizer {
  public:
    TaskQuantizer(const Checkpoint& source, TrellisEncoder& encoder,
                  const QuantizeSettings& settings)
        : source_(source), encoder_(encoder), settings_(settings) {}

    // sums: for each matrix of the task, those of the same inputs one and the same; nullptr: none.
    // The result depends on nothing else, the seed and the source's weights. Error{input}: weights
    // that are not finite, more than a tenth of the calibration's rows not finite.
    QuantizedTask run(const PlannedTask& task, const std::vector<const InputSum*>& sums) const;

  private:
    const Checkpoint& source_;
    TrellisEncoder& encoder_;
    QuantizeSettings settings_;
};

}  // namespace quadrille
