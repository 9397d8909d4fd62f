// SPDX-License-Identifier: Apache-2.0
#include "jobs/ab/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kSamples = 4000;

RecordAcceptance record(int64_t steps, int64_t first, int64_t second) {
    return {.steps = steps, .accepted = first + second, .by_position = {first, second}};
}

TEST(Bootstrap, TellsSumsOverTheRecords) {
    const std::vector<std::vector<RecordAcceptance>> drafters = {
        {record(10, 6, 3), record(30, 10, 5)}, {record(8, 6, 4), record(24, 12, 10)}};
    const auto out = compare_acceptance(drafters, 2, kSamples);
    EXPECT_DOUBLE_EQ(out[0].accept_length.value, 1 + 24.0 / 40);
    EXPECT_DOUBLE_EQ(out[0].by_position[0].value, 16.0 / 40);
    EXPECT_DOUBLE_EQ(out[1].by_position[1].value, 14.0 / 32);
    EXPECT_DOUBLE_EQ(out[1].gain.value, 2.0 / 1.6 - 1);
    EXPECT_DOUBLE_EQ(out[0].gain.value, 0);
}

TEST(Bootstrap, RecordsThatAreAllAlikeLeaveNoDoubt) {
    const std::vector<std::vector<RecordAcceptance>> drafters = {
        std::vector<RecordAcceptance>(20, record(10, 5, 2))};
    const auto out = compare_acceptance(drafters, 2, kSamples);
    EXPECT_DOUBLE_EQ(out[0].accept_length.low, 1.7);
    EXPECT_DOUBLE_EQ(out[0].accept_length.high, 1.7);
}

// Steps of one: accept length less 1 is a mean of coin tosses, whose interval is known.
TEST(Bootstrap, IntervalIsThatOfAMean) {
    std::vector<RecordAcceptance> records;
    for (int64_t i = 0; i < 400; ++i) records.push_back(record(1, i % 2, 0));
    const std::vector<std::vector<RecordAcceptance>> drafters = {records};
    const Interval found = compare_acceptance(drafters, 2, kSamples)[0].accept_length;
    const double half = 1.96 * 0.5 / std::sqrt(400.0);
    EXPECT_NEAR(found.low, 1.5 - half, 0.2 * half);
    EXPECT_NEAR(found.high, 1.5 + half, 0.2 * half);
}

// Records differ far more than drafters do: only draws in pairs see the difference.
TEST(Bootstrap, DrawsTheSameRecordsForEveryDrafter) {
    std::vector<RecordAcceptance> base, better;
    for (int64_t i = 0; i < 50; ++i) {
        base.push_back(record(100, 10 + i, 0));
        better.push_back(record(100, 13 + i, 0));
    }
    const std::vector<std::vector<RecordAcceptance>> drafters = {base, better};
    const auto out = compare_acceptance(drafters, 2, kSamples);
    EXPECT_GT(out[0].accept_length.high, out[1].accept_length.low);
    EXPECT_GT(out[1].gain.low, 0.015);
    EXPECT_LT(out[1].gain.high, 0.03);
}

TEST(Bootstrap, WithoutStepsThereIsNoNumber) {
    const std::vector<std::vector<RecordAcceptance>> drafters = {{record(0, 0, 0)}};
    EXPECT_TRUE(std::isnan(compare_acceptance(drafters, 2, 100)[0].accept_length.value));
}

}  // namespace
}  // namespace quadrille
