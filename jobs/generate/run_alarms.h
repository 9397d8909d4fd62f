// SPDX-License-Identifier: Apache-2.0
// Words about a run that goes wrong, as soon as it shows: the first record with an error or a
// repeated token, then the tenth, the hundredth and so on; a drafter whose drafts are not accepted.
#pragma once

#include "io/records.h"
#include "io/results/result_summary.h"
#include "runtime/log.h"

#include <cstdint>

namespace quadrille {

class RunAlarms {
  public:
    static constexpr int64_t kRepeats = 64;       // of a token at the end of a record
    static constexpr int64_t kStepsEnough = 500;  // to judge a drafter by
    static constexpr double kLowAcceptLength = 1.1;

    // `drafts`: the run has a drafter. `log` outlives this.
    RunAlarms(Log& log, bool drafts) : log_(log), drafts_(drafts) {}
    // After every finished record; `totals`: with it.
    void look(const Generation& finished, const ResultSums& totals);

  private:
    Log& log_;
    bool drafts_;
    bool told_of_drafts_ = false;
    int64_t errors_ = 0;
    int64_t repeating_ = 0;
};

// How often the last token of a record stands at its end.
int64_t repeats_at_end(const Generation& generation);

}  // namespace quadrille
