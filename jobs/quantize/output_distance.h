// SPDX-License-Identifier: Apache-2.0
// OutputDistance: how far what the model predicts from given final rows is from what the source
// predicts from its own.
#pragma once

#include "jobs/quantize/unit_inputs.h"

#include <cstdint>
#include <vector>

namespace quadrille {

class OutputDistance {
  public:
    // The model's rows stand behind its last layer: the source's own. All outlives this.
    OutputDistance(const CalibrationModel& model, const Checkpoint& source, int32_t threads);

    // (rows, hidden) behind the final norm, of where the rows stand now.
    std::vector<float> final_rows() const;
    // Mean over rows of KL(source || head of `head` on `rows`), natural log, over the whole
    // vocabulary. Not a number where a logit is none.
    double divergence(const std::vector<float>& rows, const Checkpoint& head) const;

  private:
    const CalibrationModel& model_;
    const Checkpoint& source_;
    int32_t threads_;
    std::vector<float> own_;
};

}  // namespace quadrille
