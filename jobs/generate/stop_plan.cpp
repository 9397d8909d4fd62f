// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/stop_plan.h"

#include <algorithm>

namespace quadrille {

StopPlan::StopPlan(StopSignals& signals, Clock::time_point start, std::chrono::seconds max_time,
                   std::chrono::seconds grace)
    : signals_(signals), grace_(grace) {
    if (max_time.count() == 0) return;
    end_at_ = start + max_time;
    drain_at_ = *end_at_ - std::min<Clock::duration>(grace, Clock::duration(max_time) / 2);
    signals_.end_at(*drain_at_, "--max-time");
}

Stop StopPlan::wish(Clock::time_point now) const {
    if (end_at_ && now >= *end_at_) return Stop::now;
    const bool out_of_time = drain_at_ && now >= *drain_at_;
    return std::max(signals_.wish(), out_of_time ? Stop::drain : Stop::none);
}

Stop StopPlan::agree(Communicator& comm, Stop heard, Clock::time_point now) {
    const Stop own = std::max(wish(now), heard);
    const bool out_of_time = drain_at_ && now >= *drain_at_;
    const bool signal = signals_.wish() != Stop::none || (heard != Stop::none && !out_of_time);
    // The strongest wish of any rank; its last bit: somebody who has it was asked by a signal.
    const int64_t strongest = comm.max_host(2 * static_cast<int64_t>(own) + (signal ? 1 : 0));
    const auto asked = static_cast<Stop>(strongest / 2);
    if (agreed_ == Stop::none && asked != Stop::none) {
        out_of_time_ = drain_at_ && strongest % 2 == 0;  // a rank's clock may be a little ahead
        end_at_ = end_at_ ? std::min(*end_at_, now + grace_) : now + grace_;
    }
    agreed_ = std::max(agreed_, asked);
    return agreed_;
}

std::string StopPlan::reason() const {
    if (out_of_time_) return "--max-time";
    const std::string signal = signals_.last();
    return signal.empty() ? "a signal to another rank" : signal;
}

}  // namespace quadrille
