// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/row_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille {

RowScores::RowScores(Backend& backend, Communicator& comm, Range part, int32_t max_rows)
    : candidates_(backend, comm, part, max_rows, 0) {
    scores_.reserve(static_cast<size_t>(max_rows));
}

std::span<const RowScore> RowScores::score(View<const float> logits,
                                           std::span<const int32_t> tokens, int64_t best) {
    candidates_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
        const SampleRow row{.row = static_cast<int32_t>(i)};
        candidates_.add_sum(row);
        candidates_.add_top(row, std::max<int64_t>(best, 1));
        candidates_.add_picked(row, tokens.subspan(i, 1));
    }
    candidates_.run(logits);
    scores_.clear();
    best_.clear();
    width_ = best;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto index = static_cast<int32_t>(i);
        const ExpSum sum = candidates_.sum(index);
        const Candidate token = candidates_.picked(index, 0, tokens[i]);
        candidates_.top(index, std::max<int64_t>(best, 1), row_);
        const double log_sum = sum.empty() ? std::numeric_limits<double>::quiet_NaN() : sum.log();
        scores_.push_back({.logprob = double{token.raw} - log_sum,
                           .best = row_.empty() ? -1 : row_.front().id,
                           .log_sum = log_sum});
        width_ = std::min(width_, std::ssize(row_));
        best_.insert(best_.end(), row_.begin(), row_.begin() + width_);
    }
    return scores_;
}

}  // namespace quadrille
