// SPDX-License-Identifier: Apache-2.0
// Acceptance of several drafters on the same records, with intervals: records are drawn with
// replacement, the same draw for every drafter (a paired bootstrap), and sums are taken anew.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// Acceptance of one record.
struct RecordAcceptance {
    int64_t steps = 0;
    int64_t accepted = 0;
    std::vector<int64_t> by_position;  // (K)
};

struct Interval {
    double value = 0;  // of the records themselves
    double low = 0;    // 2.5 % of the samples lie below
    double high = 0;   // and 2.5 % above
};

struct DrafterAcceptance {
    Interval accept_length;             // 1 + accepted / steps
    std::vector<Interval> by_position;  // (K) steps with at least i + 1 accepted drafts, of all
    Interval gain;                      // accept length over that of drafter 0, less 1
};

// `drafters`: for each the same records, in the same order. The draws depend on `resamples` and
// the number of records alone. NaN where there are no steps.
std::vector<DrafterAcceptance> compare_acceptance(
    std::span<const std::vector<RecordAcceptance>> drafters, int64_t k, int64_t resamples);

}  // namespace quadrille
