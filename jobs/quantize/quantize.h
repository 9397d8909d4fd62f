// SPDX-License-Identifier: Apache-2.0
// quantize: a BF16 or FP8 checkpoint as an EXL3 pack. All ranks run the calibration text through
// the model, one sublayer at a time, behind the sublayers that are quantized already; each
// quantizes its share of the sublayer's matrices. The pack is the same for any number of ranks,
// and for any number of starts.
#pragma once

#include "jobs/options/job.h"
#include "jobs/quantize/quantize_options.h"

namespace quadrille {

int run_quantize(const QuantizeJobOptions& options, const RankStart& start);

}  // namespace quadrille
