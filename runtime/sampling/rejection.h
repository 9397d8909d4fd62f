// SPDX-License-Identifier: Apache-2.0
// The rejection rule of speculative sampling: a draft d, drawn from q, stays with probability
// min(1, p(d) / q(d)); else the token is drawn from max(p - q, 0), normalized. The result has the
// distribution p whatever q is. Decision and residual have noise of their own, and d was drawn with
// a third, so that the three are independent.
#pragma once

#include "kernels/exp_sum.h"
#include "kernels/filter.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

// One draft and the candidates it was drawn from.
struct Proposal {
    int32_t token = -1;
    std::span<const int32_t> ids;   // empty: the draft was certain
    std::span<const float> scores;  // their logits, before temperature; -inf: not a candidate
};

// A candidate of the draft: what it weighs in q, and in the target.
struct ProposedId {
    Candidate candidate{};  // value NaN or -inf: not in the target's distribution
    double q = 0.0;
};

// Ids and q of a proposal; the candidates' values are left to the caller.
std::vector<ProposedId> proposed_ids(const Proposal& proposal, double inverse_temperature);

// The best draw, with the noise of Stream::residual, among the target's ids that were not proposed.
struct OtherBest {
    Candidate candidate{};  // id -1: there is none
    double score = 0.0;
};

struct RejectionRule {
    int32_t draft = -1;
    double inverse_temperature = 1.0;
    ExpSum total{};  // sum of the weights of the target's distribution
    uint64_t seed = 0;
    int64_t position = 0;

    // Probability of a logit in the target's distribution.
    double p(float value) const;
    bool accepts(double p, double q) const;
    // The token of this row: the draft where it is accepted. `proposed` holds the draft.
    Candidate decide(std::span<const ProposedId> proposed, const OtherBest& other) const;
};

}  // namespace quadrille
