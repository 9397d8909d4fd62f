// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace quadrille {
namespace {

constexpr std::chrono::seconds kTellEvery{10};  // within a unit

}  // namespace

void PackProgress::within(const PlannedUnit& unit, int64_t weights) {
    if (Clock::now() - told_ >= kTellEvery) tell(unit, weights);
}

void PackProgress::finish(const PlannedUnit& unit, bool found) {
    const int64_t weights = unit.weights();
    done_ += weights;
    if (found) found_ += weights;
    if (weights > 0) tell(unit, 0);
}

void PackProgress::tell(const PlannedUnit& unit, int64_t weights) {
    if (!tells_) return;
    const Clock::time_point now = Clock::now();
    told_ = now;
    const auto all = static_cast<double>(std::max<int64_t>(all_, 1));
    const double done = std::min(static_cast<double>(done_ + weights), all);
    const double fresh = done - static_cast<double>(found_);
    std::string left;
    if (fresh > 0 && done < all) {
        const std::chrono::duration<double> spent = now - begin_;
        left = fmt::format(", {} left",
                           format_duration(std::chrono::duration_cast<std::chrono::seconds>(
                               spent * ((all - done) / fresh))));
    }
    log_.notice(fmt::format("{}: {:.1f} % of the weights{}", unit.file, 100 * done / all, left));
}

}  // namespace quadrille
