// SPDX-License-Identifier: Apache-2.0
// Alarms come at the first sign and are not repeated for every record.
#include "jobs/generate/run_alarms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace quadrille {
namespace {

// What is said of `count` records like `record`.
std::string said(const Generation& record, int64_t count, bool drafts = false) {
    std::FILE* file = std::tmpfile();
    {
        Log log(true, file);
        RunAlarms alarms(log, drafts);
        ResultSums totals;
        for (int64_t i = 0; i < count; ++i) {
            totals.add(record);
            alarms.look(record, totals);
        }
    }
    std::rewind(file);
    std::string text(100000, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
}

int64_t lines(const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
}

TEST(RunAlarms, AnErrorIsToldAtOnceAndThenMoreRarely) {
    Generation record;
    record.prompt_index = 7;
    record.status = Status::error;
    record.error = "empty prompt";
    EXPECT_EQ(said(record, 1), "quadrille: alarm: record 7: empty prompt\n");
    EXPECT_EQ(lines(said(record, 99)), 2);
    EXPECT_NE(said(record, 100).find("(100 records with an error so far)"), std::string::npos);
}

TEST(RunAlarms, ATokenThatIsRepeatedIsTold) {
    Generation record;
    record.tokens.assign(RunAlarms::kRepeats, 42);
    record.tokens.front() = 41;
    EXPECT_EQ(repeats_at_end(record), RunAlarms::kRepeats - 1);
    EXPECT_EQ(said(record, 1), "");
    record.tokens.push_back(42);
    EXPECT_EQ(said(record, 1),
              "quadrille: alarm: record 0 ends with token 42, 64 times in a row\n");
    EXPECT_EQ(repeats_at_end({}), 0);
}

TEST(RunAlarms, ADrafterThatGainsNothingIsToldOnceItIsSure) {
    Generation record;
    record.acceptance.steps = 100;
    record.acceptance.accepted = 9;
    EXPECT_EQ(said(record, 4, true), "");
    EXPECT_EQ(lines(said(record, 20, true)), 1);
    EXPECT_EQ(said(record, 20, false), "");
    record.acceptance.accepted = 10;  // accept length 1.1
    EXPECT_EQ(said(record, 20, true), "");
}

}  // namespace
}  // namespace quadrille
