// SPDX-License-Identifier: Apache-2.0
// Chunks of a prefill: where they end, and that nothing is read twice or left out.
#include "runtime/prefill_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quadrille::test {
namespace {

TEST(PrefillPlan, TakesWholeWhatFits) {
    EXPECT_EQ(prefill_chunk(100, 0, 100), 100);
    EXPECT_EQ(prefill_chunk(1, 0, 4096), 1);
    EXPECT_EQ(prefill_chunk(100, 64, 36), 36);
}

TEST(PrefillPlan, CutsAtTheGridOfTheSequence) {
    EXPECT_EQ(prefill_chunk(100, 0, 99), 64);
    EXPECT_EQ(prefill_chunk(1000, 0, 256), 256);
    EXPECT_EQ(prefill_chunk(1000, 64, 255), 192);
    EXPECT_EQ(prefill_chunk(1000, 960, 39), 0);
}

TEST(PrefillPlan, WaitsWhereNoCellFits) {
    EXPECT_EQ(prefill_chunk(64, 0, 63), 0);
    EXPECT_EQ(prefill_chunk(1000, 128, 0), 0);
    // A position off the grid: less than nothing would fit below the next multiple.
    EXPECT_EQ(prefill_chunk(1000, 70, 10), 0);
}

TEST(PrefillPlan, ReadsEveryTokenOnceWhateverTheRoom) {
    for (const int64_t length : {1, 63, 64, 65, 127, 128, 1000}) {
        for (int32_t room = kPrefillGrid; room <= 300; room += 7) {
            int32_t position = 0;
            while (position < length) {
                const int32_t chunk = prefill_chunk(length, position, room);
                ASSERT_GT(chunk, 0) << length << " tokens, room " << room;
                ASSERT_LE(chunk, room);
                position += chunk;
                ASSERT_TRUE(position == length || position % kPrefillGrid == 0);
            }
            ASSERT_EQ(position, length);
        }
    }
}

TEST(PrefillPlan, LengthsBeyondAPassDoNotOverflow) {
    EXPECT_EQ(prefill_chunk(int64_t{1} << 40, INT32_MAX - 63, INT32_MAX), INT32_MAX - 63);
}

TEST(PrefillPlan, RoundsToTheGrid) {
    EXPECT_EQ(prefill_floor(63), 0);
    EXPECT_EQ(prefill_floor(64), 64);
    EXPECT_EQ(prefill_floor(127), 64);
    EXPECT_EQ(prefill_ceiling(0), 0);
    EXPECT_EQ(prefill_ceiling(1), 64);
    EXPECT_EQ(prefill_ceiling(64), 64);
    EXPECT_EQ(prefill_ceiling(65), 128);
}

}  // namespace
}  // namespace quadrille::test
