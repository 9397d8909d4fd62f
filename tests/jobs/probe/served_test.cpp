// SPDX-License-Identifier: Apache-2.0
// Steps of serving from the drafts that blocks keep, against counts made by hand.
#include "jobs/probe/served.h"

#include "kernels/error.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace quadrille::test {
namespace {

TEST(Served, StepsBeginWhereTheOneBeforeEnded) {
    Served served(3);
    // Three drafts a step: token 10 keeps 3, 14 none, 15 one, 17 (the last) two.
    served.follow({10, 11, 12, 13, 14, 15, 16, 17}, {3, 2, 1, 0, 0, 1, 0, 2},
                  {3, 3, 3, 3, 3, 3, 3, 3});
    EXPECT_EQ(served.walk[2].steps, 4);
    EXPECT_EQ(served.walk[2].tokens, 4 + 1 + 2 + 3);
    EXPECT_EQ(served.kept, (std::vector<int64_t>{3, 2, 1}));
    // One draft a step: 10, 12, 14, 15, 17.
    EXPECT_EQ(served.walk[0].steps, 5);
    EXPECT_EQ(served.walk[0].tokens, 2 + 2 + 1 + 2 + 2);
    EXPECT_EQ(served.at_best[2].steps, 2);
    EXPECT_DOUBLE_EQ(served.at_best[2].accept_length(), 4);
}

TEST(Served, IsNotTheMeanOverAllTokens) {
    // Runs of 3 right drafts between tokens that no draft hits: half of the steps keep nothing.
    Served served(3);
    std::vector<int64_t> anchors;
    std::vector<int32_t> runs;
    double mean = 0;
    for (int64_t i = 0; i < 40; ++i) {
        anchors.push_back(i);
        runs.push_back(static_cast<int32_t>(i % 5 < 4 ? 3 - i % 5 : 0));
        mean += (1.0 + runs.back()) / 40;
    }
    served.follow(anchors, runs, runs);
    EXPECT_DOUBLE_EQ(served.walk[2].accept_length(), 2.5);
    EXPECT_DOUBLE_EQ(mean, 2.2);
}

TEST(Served, GoesOnBehindAGapOfAnchors) {
    Served served(2);
    served.follow({5, 6, 30}, {2, 0, 1}, {2, 0, 1});
    EXPECT_EQ(served.walk[1].steps, 2);
    EXPECT_EQ(served.walk[1].tokens, 5);
    EXPECT_THROW(served.follow({1, 2}, {0}, {0}), Error);
}

TEST(Served, OfNoStepIsOneToken) {
    EXPECT_DOUBLE_EQ(Served(2).walk[0].accept_length(), 1);
}

}  // namespace
}  // namespace quadrille::test
