// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/group_board.h"

#include <algorithm>
#include <utility>

namespace quadrille {
namespace {

// Rank 0 may be on another host, and busy.
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

GroupProgress& GroupProgress::operator+=(const GroupProgress& other) {
    records += other.records;
    tokens += other.tokens;
    steps += other.steps;
    accepted += other.accepted;
    return *this;
}

GroupBoard::GroupBoard(const MpiSession& session, int groups)
    : comm_(session.duplicate()), counters_(comm_, kCount), groups_(groups) {}

void GroupBoard::exchange(const GroupProgress& own, Stop wish, Clock::time_point now) {
    if (wish <= told_stop_ && now - last_ < kInterval) return;
    last_ = now;
    told_stop_ = std::max(told_stop_, wish);
    stop_ =
        std::max(told_stop_,
                 static_cast<Stop>(counters_.fetch_max(static_cast<int64_t>(told_stop_), kStop)));
    ended_ = counters_.fetch_add(0, kEnded);
    tell(own);
}

// Each number that comes back is that of all groups before ours was added.
void GroupBoard::tell(const GroupProgress& own) {
    const auto add = [&](int64_t GroupProgress::*field, Counter counter) {
        const int64_t before = std::exchange(told_.*field, own.*field);
        others_.*field = counters_.fetch_add(own.*field - before, counter) - before;
    };
    add(&GroupProgress::records, kRecords);
    add(&GroupProgress::tokens, kTokens);
    add(&GroupProgress::steps, kSteps);
    add(&GroupProgress::accepted, kAccepted);
}

void GroupBoard::end(const GroupProgress& own) {
    tell(own);
    ended_ = counters_.fetch_add(1, kEnded) + 1;
}

}  // namespace quadrille
