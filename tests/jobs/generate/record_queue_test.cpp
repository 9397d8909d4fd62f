// SPDX-License-Identifier: Apache-2.0
// Records handed out to groups: each that is not done, once, in order, never more than asked for.
#include "jobs/generate/record_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

using Done = std::vector<bool>;

std::vector<std::pair<int64_t, int64_t>> slices(RecordQueue& queue) {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (RecordQueue::Slice slice = queue.next(); slice.count > 0; slice = queue.next()) {
        found.emplace_back(slice.first, slice.count);
    }
    return found;
}

TEST(RecordQueue, HandsOutNeighboursThatAreNotDone) {
    Done done(12, false);
    for (const size_t record : {0, 4, 5, 11}) done[record] = true;
    RecordQueue queue(done, {}, 4);
    using Slices = std::vector<std::pair<int64_t, int64_t>>;
    // 1 2 3 | 6 then 7 8 9 10
    EXPECT_EQ(slices(queue), (Slices{{1, 3}, {6, 1}, {7, 4}}));
    EXPECT_EQ(queue.next().count, 0);  // and stays at its end
}

TEST(RecordQueue, NothingIsLeftWhereAllIsDone) {
    RecordQueue none(Done{}, {}, 4);
    EXPECT_EQ(none.next().count, 0);
    RecordQueue done(Done(5, true), {}, 4);
    EXPECT_EQ(done.next().count, 0);
}

TEST(RecordQueue, RecordsThatRunAloneComeLastAndOneByOne) {
    const Done done{false, true, false, false, false, false};
    const Done alone{false, true, true, false, true, false};
    for (const int64_t at_once : {1, 2, 100}) {
        RecordQueue queue(done, alone, at_once);
        std::vector<int64_t> along;
        std::vector<int64_t> single;
        for (RecordQueue::Slice slice = queue.next(); slice.count > 0; slice = queue.next()) {
            EXPECT_TRUE(!slice.alone || slice.count == 1);
            EXPECT_TRUE(slice.alone || single.empty());
            for (int64_t i = 0; i < slice.count; ++i) {
                (slice.alone ? single : along).push_back(slice.first + i);
            }
        }
        EXPECT_EQ(along, (std::vector<int64_t>{0, 3, 5}));
        EXPECT_EQ(single, (std::vector<int64_t>{2, 4}));
    }
}

TEST(RecordQueue, QueuesOfOneCounterShareTheRecords) {
    for (const int64_t at_once : {1, 3, 7, 1000}) {
        Done done(200, false);
        for (size_t record = 0; record < done.size(); ++record) {
            done[record] = record % 7 == 2 || (record > 50 && record < 90);
        }
        const auto taken = std::make_shared<int64_t>(0);
        const auto take = [taken](int64_t records) {
            return std::exchange(*taken, *taken + records);
        };
        std::vector<RecordQueue> queues;
        for (int group = 0; group < 3; ++group) queues.emplace_back(done, Done{}, at_once, take);
        std::set<int64_t> seen;
        bool more = true;
        for (size_t turn = 0; more; ++turn) {
            more = false;
            for (size_t group = 0; group < queues.size(); ++group) {
                if (turn % (group + 1) != 0) {  // some are slower
                    more = true;
                    continue;
                }
                const RecordQueue::Slice slice = queues[group].next();
                more = more || slice.count > 0;
                EXPECT_LE(slice.count, at_once);
                for (int64_t i = 0; i < slice.count; ++i) {
                    EXPECT_TRUE(seen.insert(slice.first + i).second) << slice.first + i;
                }
            }
        }
        for (size_t record = 0; record < done.size(); ++record) {
            EXPECT_NE(seen.contains(static_cast<int64_t>(record)), done[record]) << record;
        }
    }
}

}  // namespace
}  // namespace quadrille
