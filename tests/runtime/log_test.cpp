// SPDX-License-Identifier: Apache-2.0
// Notices and progress: plain lines where there is no terminal, rarely enough for a log file.
#include "runtime/log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

namespace quadrille {
namespace {

using namespace std::chrono_literals;

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

class LogTest : public testing::Test {
  protected:
    std::string text() {
        std::rewind(file_.get());
        std::string all;
        for (int letter = std::fgetc(file_.get()); letter != EOF; letter = std::fgetc(file_.get()))
            all.push_back(static_cast<char>(letter));
        return all;
    }
    std::unique_ptr<std::FILE, CloseFile> file_{std::tmpfile()};
    Log::Clock::time_point start_{};
};

TEST_F(LogTest, NoticesAreLines) {
    Log log(true, file_.get());
    log.notice("12 records");
    EXPECT_EQ(text(), "quadrille: 12 records\n");
}

TEST_F(LogTest, OtherRanksAreSilent) {
    Log log(false, file_.get());
    log.notice("12 records");
    log.progress({1, 2, 3, 0.0}, start_);
    log.finish({2, 2, 3, 0.0}, start_ + 100s);
    EXPECT_EQ(text(), "");
}

TEST_F(LogTest, LinesComeEveryTenSeconds) {
    Log log(true, file_.get());
    for (int64_t i = 0; i <= 250; ++i) {  // 25 s
        log.progress({i, 1000, 100 * i, 2.5}, start_ + i * 100ms);
    }
    EXPECT_EQ(text(),
              "quadrille: 100/1000 records, 1000 tokens/s, accept length 2.50, 1 min 30 s left\n"
              "quadrille: 200/1000 records, 1000 tokens/s, accept length 2.50, 1 min 20 s left\n");
}

TEST_F(LogTest, TheLastStateIsAlwaysPrinted) {
    Log log(true, file_.get());
    log.progress({0, 2, 0, 0.0}, start_);
    log.finish({2, 2, 9, 0.0}, start_ + 2s);
    EXPECT_EQ(text(), "quadrille: 2/2 records, 4.5 tokens/s\n");
}

TEST_F(LogTest, NothingDoneHasNoRates) {
    Log log(true, file_.get());
    log.finish({0, 0, 0, 0.0}, start_);
    EXPECT_EQ(text(), "quadrille: 0/0 records\n");
}

TEST_F(LogTest, ResumedRecordsDoNotCountAsSpeed) {
    Log log(true, file_.get());
    log.progress({500, 1000, 70000, 0.0}, start_);
    log.progress({510, 1000, 71000, 0.0}, start_ + 10s);
    EXPECT_EQ(text(), "quadrille: 510/1000 records, 100 tokens/s, 8 min 10 s left\n");
}

TEST(Durations, ReadWell) {
    EXPECT_EQ(format_duration(-5s), "0 s");
    EXPECT_EQ(format_duration(59s), "59 s");
    EXPECT_EQ(format_duration(65s), "1 min 05 s");
    EXPECT_EQ(format_duration(3725s), "1 h 02 min");
    EXPECT_EQ(format_duration(100h), "100 h 00 min");
}

}  // namespace
}  // namespace quadrille
