// SPDX-License-Identifier: Apache-2.0
// Which records a group of ranks runs next: those that no earlier start has done, in order, a few
// at a time; behind them, one by one, those that must run alone. Groups that share a counter share
// the records, each of which goes to one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace quadrille {

class RecordQueue {
  public:
    struct Slice {
        int64_t first = 0;  // record
        int64_t count = 0;  // 0: there are none left
        bool alone = false;
    };
    // Counts `records` more as handed out and returns how many were before.
    using Take = std::function<int64_t(int64_t records)>;

    // `done`, `alone`: of every record ({}: none runs alone); `at_once`: records handed out at a
    // time, at most; `take`: of a counter that all groups share; {}: there is one group.
    RecordQueue(const std::vector<bool>& done, const std::vector<bool>& alone, int64_t at_once,
                Take take = {});

    // Neighbouring records.
    Slice next();

  private:
    // Neighbouring records that are not done, and how many such there are before them.
    struct Run {
        int64_t first = 0;
        int64_t before = 0;
        bool alone = false;
    };

    std::vector<Run> runs_;
    int64_t open_ = 0;  // records that are not done
    int64_t at_once_;
    Take take_;
    // Ours, not yet told by next(): counted over the open records.
    int64_t begin_ = 0;
    int64_t end_ = 0;
};

}  // namespace quadrille
