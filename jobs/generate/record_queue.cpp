// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/record_queue.h"

#include "kernels/error.h"

#include <algorithm>
#include <utility>

namespace quadrille {

RecordQueue::RecordQueue(const std::vector<bool>& done, const std::vector<bool>& alone,
                         int64_t at_once, Take take)
    : at_once_(at_once), take_(std::move(take)) {
    require(at_once > 0, "at least one record at a time");
    const auto runs_alone = [&](size_t record) { return !alone.empty() && alone[record]; };
    const auto runs_along = [&](size_t record) { return !done[record] && !runs_alone(record); };
    for (size_t record = 0; record < done.size(); ++record) {
        if (!runs_along(record)) continue;
        if (record == 0 || !runs_along(record - 1)) {
            runs_.push_back({.first = static_cast<int64_t>(record), .before = open_});
        }
        ++open_;
    }
    for (size_t record = 0; record < done.size(); ++record) {
        if (done[record] || !runs_alone(record)) continue;
        runs_.push_back({.first = static_cast<int64_t>(record), .before = open_++, .alone = true});
    }
    if (take_) return;
    take_ = [taken = int64_t{0}](int64_t records) mutable {
        return std::exchange(taken, taken + records);
    };
}

RecordQueue::Slice RecordQueue::next() {
    if (begin_ == end_) {
        begin_ = take_(at_once_);
        end_ = std::min(begin_ + at_once_, open_);
        if (begin_ >= open_) {
            begin_ = end_ = open_;
            return {};
        }
    }
    const auto behind = std::ranges::upper_bound(runs_, begin_, {}, &Run::before);
    const Run& run = *(behind - 1);
    const int64_t run_end = behind == runs_.end() ? open_ : behind->before;
    const Slice slice{.first = run.first + (begin_ - run.before),
                      .count = std::min(end_, run_end) - begin_,
                      .alone = run.alone};
    begin_ += slice.count;
    return slice;
}

}  // namespace quadrille
