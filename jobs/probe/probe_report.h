// SPDX-License-Identifier: Apache-2.0
// What probe found, as tables and as JSON.
#pragma once

#include "drafter/train/draft_loss.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// How often rows gave the next token.
struct Agreement {
    std::string rows;  // which
    int64_t right = 0;
    int64_t tokens = 0;
};

struct ProbeReport {
    std::string capture;
    int64_t tokens = 0;  // generated
    std::vector<Agreement> agreement;
    std::string drafter;  // folder
    double steps_per_second = 0;
    std::optional<LossReport> draft, refitted;

    std::string text() const;
    std::string json() const;
};

// Tokens a step with up to k drafts, `counts` being blocks that keep their first j + 1.
double accept_length(const std::vector<int64_t>& counts, int64_t blocks, int64_t k);

}  // namespace quadrille
