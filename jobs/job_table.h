// SPDX-License-Identifier: Apache-2.0
// The jobs of the program, in the order of its help.
#pragma once

#include "jobs/options/job.h"

#include <vector>

namespace quadrille {

std::vector<JobRow> job_table();

}  // namespace quadrille
