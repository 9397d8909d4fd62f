// SPDX-License-Identifier: Apache-2.0
// The table that a run of generate prints at its end.
#pragma once

#include "io/result_writer.h"
#include "runtime/engine.h"

#include <cstdint>
#include <string>

namespace quadrille {

// Several lines, ready to print. `totals`: of the whole file; `earlier`: of starts before this one;
// `stats` and `seconds`: of this start; `k`: 0 without a drafter.
std::string summary_table(const ResultSummary& totals, const ResultSummary& earlier,
                          const EngineStats& stats, int32_t k, double seconds,
                          const std::string& out);

}  // namespace quadrille
