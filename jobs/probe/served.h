// SPDX-License-Identifier: Apache-2.0
// Steps of serving, from the drafts that blocks at every token keep. A step begins where the one
// before it ended: easy text has few steps and hard text many, so that the mean over all tokens is
// another number (2.8 for 2.3 on the demo).
#pragma once

#include "drafter/train/draft_loss.h"

#include <cstdint>
#include <vector>

namespace quadrille {

// Steps and what they emit with up to k drafts a step.
struct StepCount {
    int64_t steps = 0, tokens = 0;

    double accept_length() const {
        return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 1.0;
    }
};

struct Served {
    explicit Served(int64_t drafts);

    // One sequence: drafts kept by a block at each of `anchors`, which ascend; `best`: of a
    // selector that chooses the right candidate. Steps begin at the first anchor and end with the
    // anchors.
    void follow(const std::vector<int64_t>& anchors, const std::vector<int32_t>& runs,
                const std::vector<int32_t>& best);

    LossReport blocks;                     // at every token
    std::vector<StepCount> walk, at_best;  // [k - 1]
    std::vector<int64_t> kept;             // steps of the longest drafts that keep the first j + 1
};

}  // namespace quadrille
