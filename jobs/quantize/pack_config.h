// SPDX-License-Identifier: Apache-2.0
// config.json of a pack: the source's with the quantization_config of the packs that are shipped.
#pragma once

#include "jobs/quantize/pack_plan.h"
#include "jobs/quantize/quantize_options.h"

#include <nlohmann/json.hpp>

#include <cstdint>

namespace quadrille {

// Calibration as quantization_config tells it; no rows: none.
struct CalibrationSize {
    int64_t rows = 0;
    int64_t cols = 0;  // tokens of the longest
};

nlohmann::ordered_json pack_config(const Checkpoint& source, const PackPlan& plan,
                                   const QuantizeJobOptions& options,
                                   const CalibrationSize& calibration);

}  // namespace quadrille
