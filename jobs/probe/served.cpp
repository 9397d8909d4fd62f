// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/served.h"

#include "kernels/error.h"

#include <algorithm>

namespace quadrille {
namespace {

// emit(drafts kept) for each step with up to k drafts.
template <class Emit>
void each_step(const std::vector<int64_t>& anchors, const std::vector<int32_t>& runs, int64_t k,
               const Emit& emit) {
    for (size_t i = 0; i < anchors.size();) {
        const int64_t run = std::min<int64_t>(runs[i], k);
        emit(run);
        const int64_t next = anchors[i] + run + 1;
        while (i < anchors.size() && anchors[i] < next) ++i;
    }
}

}  // namespace

Served::Served(int64_t drafts)
    : walk(static_cast<size_t>(drafts)),
      at_best(static_cast<size_t>(drafts)),
      kept(static_cast<size_t>(drafts)) {}

void Served::follow(const std::vector<int64_t>& anchors, const std::vector<int32_t>& runs,
                    const std::vector<int32_t>& best) {
    require(runs.size() == anchors.size() && best.size() == anchors.size(), "a run each anchor");
    const auto count = [&](const std::vector<int32_t>& of, std::vector<StepCount>& to) {
        for (size_t k = 1; k <= to.size(); ++k) {
            StepCount& sum = to[k - 1];
            each_step(anchors, of, static_cast<int64_t>(k), [&](int64_t run) {
                ++sum.steps;
                sum.tokens += run + 1;
            });
        }
    };
    count(runs, walk);
    count(best, at_best);
    each_step(anchors, runs, static_cast<int64_t>(kept.size()), [&](int64_t run) {
        for (size_t j = 0; j < static_cast<size_t>(run); ++j) ++kept[j];
    });
}

}  // namespace quadrille
