// SPDX-License-Identifier: Apache-2.0
// quadrille plan: what a run of generate would take, before it is queued. Reads headers, and
// prompts where they are given; needs no ranks and no GPU.
#pragma once

#include "jobs/plan/plan_options.h"

namespace quadrille {

// Returns the exit code: that of a device whose memory does not suffice where it does not fit.
int run_plan(const PlanOptions& options);

}  // namespace quadrille
