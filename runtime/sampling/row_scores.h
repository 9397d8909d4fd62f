// SPDX-License-Identifier: Apache-2.0
// What the model makes of given tokens: of each row of logits the natural log of the softmax of one
// token, and the most likely token. The vocabulary is shared by the ranks; sums are exact
// (kernels/exp_sum.h), so that a row's score has the same bits for any ranks and any company.
#pragma once

#include "kernels/backend.h"
#include "runtime/ranks/comm.h"
#include "runtime/sampling/rank_candidates.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

struct RowScore {
    double logprob = 0.0;  // of the token; NaN: no logit of the row is a number
    int32_t best = -1;     // the token with the largest logit, ties to the lowest id
    double log_sum = 0.0;  // log of the sum of the logits' exponentials: logprob = logit - log_sum
};

class RowScores {
  public:
    // `part`: this rank's ids. Collective.
    RowScores(Backend& backend, Communicator& comm, Range part, int32_t max_rows);

    // The score of tokens[i] in row i of `logits` (tokens.size(), part); at most max_rows. `best`:
    // how many of the most likely ids best() is to tell. The result is valid until the next call.
    // Collective.
    std::span<const RowScore> score(View<const float> logits, std::span<const int32_t> tokens,
                                    int64_t best = 0);
    // The most likely ids of row `i`, as many as asked for or as there are.
    std::span<const Candidate> best(size_t i) const {
        return std::span(best_).subspan(i * static_cast<size_t>(width_),
                                        static_cast<size_t>(width_));
    }

  private:
    RankCandidates candidates_;
    std::vector<RowScore> scores_;
    std::vector<Candidate> best_;  // (rows, width)
    int64_t width_ = 0;
    std::vector<Candidate> row_;
};

}  // namespace quadrille
