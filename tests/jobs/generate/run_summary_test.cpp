// SPDX-License-Identifier: Apache-2.0
// What a start says of itself: rates of what it did alone, whatever earlier starts had done, in the
// table at its end and in /provenance.
#include "jobs/generate/run_summary.h"

#include "jobs/common/provenance.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>

namespace quadrille {
namespace {

// 10 records: 60 tokens read; 100 tokens in 2 s of decode passes, 30 records in 20 of them.
EngineStats some_stats() {
    EngineStats stats;
    stats.steps = 25;
    stats.prefill_tokens = 60;
    stats.decode_steps = 20;
    stats.decode_records = 30;
    stats.emitted = 110;
    stats.first_tokens = 10;
    stats.prefill_seconds = 1;
    stats.decode_seconds = 2;
    stats.draft_seconds = 0.5;
    return stats;
}

// A file in which records that were running at the end of the earlier start were taken up: their
// tokens are in no record that it finished.
ResultSummary file_totals() {
    ResultSummary totals;
    totals.records = 10;
    totals.tokens = 1000;
    totals.steps = 500;
    totals.emitted = 990;
    totals.accepted = 490;
    totals.by_position = {400, 90};
    return totals;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST(RunSummary, RatesAreOfThisStart) {
    const std::string text = summary_table(
        file_totals(), {}, {.stats = some_stats(), .k = 2, .seconds = 4, .restarts = 1}, "out.h5");
    EXPECT_TRUE(has(text, "60 read, 1000 written")) << text;
    EXPECT_TRUE(has(text,
                    "of the file: records, tokens written, accept length; of this start, "
                    "which wrote 110 tokens: the others"))
        << text;
    EXPECT_TRUE(has(text, "50.0 tokens/s; 20 passes of 100.00 ms, 1.5 records each")) << text;
}

TEST(RunSummary, OneStartNeedsNoWordsOnWhoseFiguresTheyAre) {
    const std::string text =
        summary_table(file_totals(), {}, {.stats = some_stats(), .k = 2, .seconds = 4}, "out.h5");
    EXPECT_FALSE(has(text, "of this start")) << text;
}

TEST(Provenance, HoldsWhatTheLastStartDid) {
    RunFacts facts{.start = utc_now(), .hosts = {"a"}, .devices = {}, .comm = {}, .libraries = {}};
    facts.seconds = 4;
    facts.stats = some_stats();
    facts.groups = 2;
    const h5::Attributes fields = provenance({}, {}, facts);
    const auto count = [&](const char* name) { return std::get<int64_t>(fields.at(name)); };
    const auto time = [&](const char* name) { return std::get<double>(fields.at(name)); };
    EXPECT_EQ(count("last_start_tokens_read"), 60);
    EXPECT_EQ(count("last_start_tokens_written"), 110);
    EXPECT_EQ(count("last_start_passes"), 25);
    EXPECT_EQ(count("last_start_decode_passes"), 20);
    EXPECT_DOUBLE_EQ(time("last_start_seconds"), 4);
    EXPECT_DOUBLE_EQ(time("decode_rate"), 100);                 // of decode passes alone
    EXPECT_DOUBLE_EQ(time("last_start_prefill_seconds"), 0.5);  // groups run side by side
    EXPECT_DOUBLE_EQ(time("last_start_decode_seconds"), 1);
    EXPECT_DOUBLE_EQ(time("last_start_draft_seconds"), 0.25);
}

}  // namespace
}  // namespace quadrille
