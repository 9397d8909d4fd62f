// SPDX-License-Identifier: Apache-2.0
// quadrille capture: the target generates, then reads each conversation whole; what it showed of
// every token goes to capture.h5 (io/FORMAT.md).
#pragma once

#include "jobs/capture/capture_options.h"
#include "jobs/generate/generate_options.h"
#include "jobs/options/job.h"

namespace quadrille {

// Resumable: generations as generate's, rows in blocks of sequences. Returns the exit code.
int run_capture(const CaptureOptions& options, const RankStart& start);

// generate, and with --save-hidden F a capture of what it generated.
int run_generate_saving(const GenerateOptions& options, const RankStart& start);

}  // namespace quadrille
