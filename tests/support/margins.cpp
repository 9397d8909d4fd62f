// SPDX-License-Identifier: Apache-2.0
#include "tests/support/margins.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace quadrille::test {

namespace {

// Between the `chosen`-th largest and the next.
double margin_of(std::vector<double> scores, int64_t chosen) {
    if (std::ssize(scores) <= chosen) return std::numeric_limits<double>::infinity();
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const auto at = static_cast<size_t>(chosen);
    return scores[at - 1] - scores[at];
}

}  // namespace

void MarginBackend::note(const Rows& rows) {
    const auto begin = fetch(rows.begin, rows.sequences + 1);
    const auto slot = fetch(rows.slot, rows.sequences);
    const auto position = fetch(rows.position, rows.sequences);
    last_.clear();
    for (size_t i = 0; i < slot.size(); ++i) {
        const int32_t count = begin[i + 1] - begin[i];
        if (slot[i] >= 0 && count > 0) {
            last_.push_back({begin[i + 1] - 1, slot[i], int64_t{position[i]} + count});
        }
    }
}

void MarginBackend::kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
                        const KdaParams& params, const Rows& rows) {
    note(rows);
    inner().kda(pass, weights, state, params, rows);
}

void MarginBackend::index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                                 View<const float> weight, const IndexCache& cache,
                                 const IndexParams& params, const Rows& rows) {
    inner().index_select(selected, count, query, weight, cache, params, rows);
    note(rows);
    const int64_t d = params.head_dim;
    for (const Last& last : last_) {
        const int64_t pools = last.visible / params.pool;
        const int64_t wanted = params.topk / params.pool;
        if (pools <= wanted) continue;
        const auto queries = fetch(query.row(last.row), query.cols);
        const auto weights = fetch(weight.row(last.row), weight.cols);
        const auto keys = fetch(cache.pools.row(last.slot), pools * d);
        std::vector<double> scores(static_cast<size_t>(pools));
        double largest = 0;
        for (int64_t p = 0; p < pools; ++p) {
            double& score = scores[static_cast<size_t>(p)];
            for (int64_t h = 0; h < params.heads; ++h) {
                double match = 0;
                for (int64_t j = 0; j < d; ++j) {
                    match += static_cast<double>(queries[static_cast<size_t>(h * d + j)]) *
                             static_cast<double>(keys[static_cast<size_t>(p * d + j)]);
                }
                score +=
                    static_cast<double>(weights[static_cast<size_t>(h)]) * std::max(match, 0.0);
            }
            largest = std::max(largest, std::abs(score));
        }
        double& margin = margins_[last.slot].index;
        margin = std::min(margin, margin_of(std::move(scores), wanted) / largest);
    }
}

void MarginBackend::route(View<int32_t> ids, View<float> weights, View<const float> logits,
                          const float* bias, float scale, const Rows& rows) {
    inner().route(ids, weights, logits, bias, scale, rows);
    const auto biases = fetch(bias, logits.cols);
    for (const Last& last : last_) {
        std::vector<double> scores;
        for (const float logit : fetch(logits.row(last.row), logits.cols)) {
            scores.push_back(1 / (1 + std::exp(-static_cast<double>(logit))) +
                             static_cast<double>(biases[scores.size()]));
        }
        double& margin = margins_[last.slot].router;
        margin = std::min(margin, margin_of(std::move(scores), ids.cols));
    }
}

}  // namespace quadrille::test
