// SPDX-License-Identifier: Apache-2.0
// verify: replays records of finished generations without drafts, with the settings that the file
// names, and compares token by token. Speculation must not change what is generated, sampled or
// not; neither must the batch, the ranks, a restart. Exit kRecordErrors where a record differs.
#pragma once

#include "jobs/options/job.h"
#include "jobs/verify/verify_options.h"

namespace quadrille {

int run_verify(const VerifyOptions& options, const RankStart& start);

}  // namespace quadrille
