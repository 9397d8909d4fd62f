// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_alarms.h"

#include "jobs/common/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace quadrille {
namespace {

constexpr int64_t kErrorWidth = 200;  // characters of an error

// 1, 10, 100 and so on.
bool is_told(int64_t count) {
    while (count % 10 == 0) count /= 10;
    return count == 1;
}

std::string counted(int64_t count, const char* what) {
    return count == 1 ? "" : fmt::format(" ({} records {} so far)", count, what);
}

}  // namespace

int64_t repeats_at_end(const Generation& generation) {
    const auto& tokens = generation.tokens;
    if (tokens.empty()) return 0;
    const auto other = std::find_if(tokens.rbegin(), tokens.rend(),
                                    [&](int32_t token) { return token != tokens.back(); });
    return other - tokens.rbegin();
}

void RunAlarms::look(const Generation& finished, const ResultSums& totals) {
    if (finished.status == Status::error && is_told(++errors_)) {
        log_.notice(fmt::format("alarm: record {}: {}{}", finished.prompt_index,
                                excerpt(finished.error, kErrorWidth),
                                counted(errors_, "with an error")));
    }
    const int64_t repeats = repeats_at_end(finished);
    if (repeats >= kRepeats && is_told(++repeating_)) {
        log_.notice(fmt::format("alarm: record {} ends with token {}, {} times in a row{}",
                                finished.prompt_index, finished.tokens.back(), repeats,
                                counted(repeating_, "do that")));
    }
    const bool low = totals.steps >= kStepsEnough && totals.accept_length() < kLowAcceptLength;
    if (!drafts_ || told_of_drafts_ || !low) return;
    told_of_drafts_ = true;
    log_.notice(
        fmt::format("alarm: accept length {:.3f} after {} steps: this drafter costs more "
                    "than it gains; is it one for this target?",
                    totals.accept_length(), totals.steps));
}

}  // namespace quadrille
