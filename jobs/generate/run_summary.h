// SPDX-License-Identifier: Apache-2.0
// What a run of generate prints at its end, and appends to a file of measurements.
#pragma once

#include "io/results/result_summary.h"
#include "jobs/common/provenance.h"
#include "jobs/generate/generate_options.h"
#include "jobs/generate/run_files.h"
#include "jobs/generate/start_figures.h"
#include "jobs/roofline/roofline.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

struct StartSummary {
    StartFigures now;  // this start: times are means of its groups, counts sums
    StartFigures all;  // of all starts
    int64_t groups = 1;
    int32_t k = 0;                        // 0 without a drafter
    int64_t restarts = 0;                 // starts before this one
    std::vector<Latency> latencies = {};  // of records that this start finished
    std::optional<Roofline> roofline = {};
};

// Several lines, ready to print. `totals`: of the whole file; `earlier`: of starts before this one.
std::string summary_table(const ResultSummary& totals, const ResultSummary& earlier,
                          const StartSummary& start, const std::string& out);

// What the rows of a run say beside its figures.
struct SummaryPlace {
    std::string date;
    std::string hardware;
    std::string shape;  // models, ranks, prompts, batch, K
};
// Rows of docs/results.tsv, of this start.
std::string summary_rows(const ResultSummary& totals, const StartSummary& start,
                         const SummaryPlace& place);

// Checks the file of --append-tsv before the run. Errors: append_results.
void check_results_tsv(const GenerateOptions& options);
// What ran, as bench tells it in its rows.
std::string run_shape(const GenerateOptions& options, const std::string& backend,
                      const RunFacts& facts, int32_t k);

// The value that the part `share` of all values are not above; NaN: there are none.
double percentile(std::vector<float> values, double share);

}  // namespace quadrille
