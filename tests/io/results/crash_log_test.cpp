// SPDX-License-Identifier: Apache-2.0
#include "io/results/crash_log.h"

#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using test::TempFolder;

using Crashes = std::map<RecordKey, std::vector<std::string>>;

Crashes crashes_of(const std::string& text) {
    const TempFolder folder;
    std::ofstream(folder.path() / kCrashLog) << text;
    return read_crashes(folder.path());
}

TEST(CrashLog, EveryStartCountsOnceForARecord) {
    const RecordKey first{.source = 0, .prompt_index = 12, .sample = 3};
    const RecordKey second{.source = 1, .prompt_index = int64_t{1} << 40, .sample = 0};
    const std::string both = crash_text(std::vector{first, second});
    EXPECT_EQ(both, "0/12/3 1/1099511627776/0");
    const Crashes found =
        crashes_of("4\tsignal 11\t" + both + "\n4\tsignal 6\t" + both + "\n5\tout of memory\t" +
                   crash_text(std::vector{second}) + "\n");
    EXPECT_EQ(found, (Crashes{{first, {"signal 11"}}, {second, {"signal 11", "out of memory"}}}));
}

TEST(CrashLog, WhatMakesNoSenseCountsForNothing) {
    EXPECT_TRUE(crashes_of("").empty());
    EXPECT_TRUE(
        crashes_of("\n\t\t\nx\ty\t0/1/0\n-1\ty\t0/1/0\n1\ty\n1\ty\t0/1 0/-1/0 a/b/c 0/1/0/0 "
                   "99999999999999999999/0/0\n")
            .empty());
    const TempFolder folder;
    EXPECT_TRUE(read_crashes(folder.path()).empty());
    EXPECT_TRUE(read_crashes(folder.path() / "none").empty());
}

TEST(CrashLog, ACauseIsOneShortLine) {
    EXPECT_EQ(crash_cause("a\tb\nc"), "a b c");
    EXPECT_EQ(crash_cause(std::string(1000, 'x')).size(), 300U);
    EXPECT_EQ(crash_text({}), "");
}

}  // namespace
}  // namespace quadrille
