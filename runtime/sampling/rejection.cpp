// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/rejection.h"

#include "kernels/error.h"
#include "kernels/noise.h"
#include "kernels/sample_row.h"

#include <algorithm>
#include <limits>

namespace quadrille {

std::vector<ProposedId> proposed_ids(const Proposal& proposal, double inverse_temperature) {
    if (proposal.ids.empty()) return {{.candidate = {.id = proposal.token}, .q = 1.0}};
    require(proposal.scores.size() == proposal.ids.size(), "a proposal has a score for each id");
    ExpSum total;
    for (size_t j = 0; j < proposal.ids.size(); ++j) {
        if (proposal.ids[j] >= 0) total.add(weight_of(proposal.scores[j], inverse_temperature));
    }
    std::vector<ProposedId> proposed;
    for (size_t j = 0; j < proposal.ids.size(); ++j) {
        if (proposal.ids[j] < 0) continue;
        ExpSum weight;
        weight.add(weight_of(proposal.scores[j], inverse_temperature));
        const double q = weight.empty() ? 0.0 : weight.over(total.top) / total.over(total.top);
        proposed.push_back({.candidate = {.id = proposal.ids[j]}, .q = q});
    }
    return proposed;
}

double RejectionRule::p(float value) const {
    ExpSum weight;
    weight.add(weight_of(value, inverse_temperature));
    return weight.empty() || total.empty() ? 0.0 : weight.over(total.top) / total.over(total.top);
}

bool RejectionRule::accepts(double p, double q) const {
    const double u = uniform_of(noise_bits_of(seed, position, Stream::accept, 0));
    return u * q < p;
}

Candidate RejectionRule::decide(std::span<const ProposedId> proposed,
                                const OtherBest& other) const {
    const auto draft_at =
        std::find_if(proposed.begin(), proposed.end(),
                     [&](const ProposedId& one) { return one.candidate.id == draft; });
    require(draft_at != proposed.end(), "a draft is one of its candidates");
    if (accepts(p(draft_at->candidate.value), draft_at->q)) return draft_at->candidate;

    // Scores on the scale of the others': ln of the unnormalized residual, plus noise.
    const double log_total = total.log();
    Candidate best = other.candidate;
    double best_score = best.id < 0 ? -std::numeric_limits<double>::infinity() : other.score;
    const auto offer = [&](const ProposedId& one, double mass) {
        if (!(mass > 0.0)) return;
        const double score = noise_log(mass) + log_total +
                             gumbel(seed, position, Stream::residual, one.candidate.id);
        if (best.id < 0 || score > best_score ||
            (score == best_score && one.candidate.id < best.id)) {
            best = one.candidate;
            best_score = score;
        }
    };
    for (const ProposedId& one : proposed) offer(one, p(one.candidate.value) - one.q);
    // No residual: p and q are equal up to rounding.
    if (best.id < 0) {
        for (const ProposedId& one : proposed) offer(one, p(one.candidate.value));
    }
    return best;
}

}  // namespace quadrille
