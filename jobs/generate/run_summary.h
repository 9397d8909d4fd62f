// SPDX-License-Identifier: Apache-2.0
// The table that a run of generate prints at its end.
#pragma once

#include "io/results/result_writer.h"
#include "runtime/engine.h"

#include <cstdint>
#include <string>

namespace quadrille {

// Figures are of this start.
struct StartSummary {
    EngineStats stats;  // the sum over groups
    int groups = 1;
    int32_t k = 0;  // 0 without a drafter
    double seconds = 0;
    int64_t restarts = 0;  // starts before this one
};

// Several lines, ready to print. `totals`: of the whole file; `earlier`: of starts before this one.
std::string summary_table(const ResultSummary& totals, const ResultSummary& earlier,
                          const StartSummary& start, const std::string& out);

}  // namespace quadrille
