// SPDX-License-Identifier: Apache-2.0
// What a start says of itself: rates of what it did alone, whatever earlier starts had done, in the
// table at its end and in /provenance.
#include "jobs/generate/run_summary.h"

#include "jobs/common/provenance.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

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

StartSummary some_summary() {
    StartSummary summary;
    summary.k = 2;
    summary.now.stats = some_stats();
    summary.now.seconds = 4;
    summary.now.start_up = 0.25;
    summary.now.loop = {.reading = 0.125, .writing = 0.375, .idle = 0};
    summary.all = summary.now;
    return summary;
}

TEST(RunSummary, RatesAreOfThisStart) {
    StartSummary start = some_summary();
    start.restarts = 1;
    start.all += start.now;
    const std::string text = summary_table(file_totals(), {}, start, "out.h5");
    EXPECT_TRUE(has(text, "60 read, 1000 written")) << text;
    EXPECT_TRUE(has(text,
                    "of the file: records, tokens written, accept length; of this start, "
                    "which wrote 110 tokens: the others"))
        << text;
    EXPECT_TRUE(has(text, "50.0 tokens/s; 20 passes of 100.00 ms, 1.5 records each")) << text;
    EXPECT_TRUE(has(text, "2 in 8.00 s: 120 tokens read, 220 written, 50 passes")) << text;
    EXPECT_TRUE(has(text, "draft              0.50  12 %        1.00  12 %")) << text;
}

TEST(RunSummary, OneStartNeedsNoWordsOnWhoseFiguresTheyAre) {
    const std::string text = summary_table(file_totals(), {}, some_summary(), "out.h5");
    EXPECT_FALSE(has(text, "of this start")) << text;
    EXPECT_FALSE(has(text, "all starts")) << text;
}

// The seconds of the table are those of the start: nothing counts twice or is missing.
TEST(RunSummary, ShowsWhereTheTimeWent) {
    const std::string text = summary_table(file_totals(), {}, some_summary(), "out.h5");
    double sum = 0;
    std::istringstream lines(text.substr(text.find("time went to")));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && line.starts_with("  ") && !has(line, "(")) {
        sum += std::stod(line.substr(line.find_first_of("0123456789")));
    }
    EXPECT_NEAR(sum, 4, 0.02) << text;
    EXPECT_TRUE(has(text, "the rest           0.25   6 %")) << text;
}

TEST(RunSummary, PercentilesAreValuesThatOccur) {
    const std::vector<float> values = {5, 1, 4, 2, 3};
    EXPECT_EQ(percentile(values, 0.5), 3);
    EXPECT_EQ(percentile(values, 0.2), 1);
    EXPECT_EQ(percentile(values, 0.21), 2);
    EXPECT_EQ(percentile(values, 1.0), 5);
    EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

// Records of 2, 4 and 6 steps that accept 1, 3 and 2 drafts: 6 in 12; the squares of x - s / 2 are
// 0, 1 and 1.
TEST(ResultSums, StandardErrorsAreThoseOfARatioOfSums) {
    ResultSummary sums;
    const auto add = [&](int64_t steps, int64_t accepted, const char* kind) {
        Generation generation;
        generation.kind = kind;
        generation.acceptance.steps = steps;
        generation.acceptance.accepted = accepted;
        generation.acceptance.by_position = {accepted};
        sums.add(generation);
    };
    add(2, 1, "a");
    EXPECT_TRUE(std::isnan(sums.accept_length_error()));
    add(4, 3, "b");
    add(6, 2, "a");
    EXPECT_DOUBLE_EQ(sums.accept_length(), 1.5);
    EXPECT_NEAR(sums.accept_length_error(), std::sqrt(3.0 / 2 * 2) / 12, 1e-12);
    EXPECT_NEAR(sums.position_error(0), sums.accept_length_error(), 1e-12);
    EXPECT_EQ(sums.kinds.at("a").records, 2);
    EXPECT_DOUBLE_EQ(sums.kinds.at("b").position_rate(0), 0.75);
    Generation idle;  // a record without steps tells nothing
    sums.add(idle);
    EXPECT_NEAR(sums.accept_length_error(), std::sqrt(3.0 / 2 * 2) / 12, 1e-12);
}

TEST(SummaryRows, AreThoseOfResultsTsv) {
    StartSummary start = some_summary();
    start.latencies = {{.first = 0.5F, .whole = 2.0F}, {.first = 0.25F, .whole = 1.0F}};
    start.roofline = Roofline{.ops = {{WorkKind{}, 0.04}}, .collectives = 0.01};
    const std::string rows = summary_rows(
        file_totals(), start, {.date = "2026-12-01", .hardware = "a machine", .shape = "x, y"});
    EXPECT_TRUE(has(rows, "\ta machine\tgenerate decode\tx, y\t50\ttokens/s\t0.500\n")) << rows;
    EXPECT_TRUE(has(rows, "\tgenerate step\tx, y\t100\tms\t0.500\n")) << rows;
    EXPECT_TRUE(has(rows, "\tgenerate latency p99\tx, y\t2\ts\t\n")) << rows;
    for (size_t at = 0; at < rows.size(); at = rows.find('\n', at) + 1) {
        const std::string row = rows.substr(at, rows.find('\n', at) - at);
        EXPECT_EQ(std::ranges::count(row, '\t'), 7) << row;
    }
}

TEST(StartFigures, OfEarlierStartsAddUpAndThoseOfGroupsAreMeans) {
    const test::TempFolder folder;
    StartFigures figures = some_summary().now;
    const auto write = [&](int group, int64_t start) {
        std::ofstream(figures_path(folder.path(), group, start)) << figures_json(figures);
    };
    write(0, 0);
    write(0, 1);
    figures.stats.decode_seconds = 4;
    write(1, 1);
    write(0, 2);  // the start at hand
    std::ofstream(figures_path(folder.path(), 1, 0)) << "torn";
    std::ofstream(folder.path() / "figures-x.json") << "{}";
    const StartFigures all = earlier_figures(folder.path(), 2);
    EXPECT_EQ(all.stats.prefill_tokens, 180);
    EXPECT_DOUBLE_EQ(all.stats.decode_seconds, 2.0 / 2 + (2.0 + 4.0) / 2);
    EXPECT_DOUBLE_EQ(earlier_figures(folder.path(), 0).seconds, 0);
}

TEST(Provenance, HoldsWhatStartsDid) {
    RunFacts facts{.start = utc_now(), .hosts = {"a"}, .devices = {}, .comm = {}, .libraries = {}};
    facts.last = some_summary().now;
    facts.all = facts.last;
    facts.all += facts.last;
    facts.last.average(2);
    facts.groups = 2;
    const h5::Attributes fields = provenance({}, {}, facts);
    const auto count = [&](const char* name) { return std::get<int64_t>(fields.at(name)); };
    const auto time = [&](const char* name) { return std::get<double>(fields.at(name)); };
    EXPECT_EQ(count("last_start_tokens_read"), 60);
    EXPECT_EQ(count("last_start_tokens_written"), 110);
    EXPECT_EQ(count("last_start_passes"), 25);
    EXPECT_EQ(count("last_start_decode_passes"), 20);
    EXPECT_DOUBLE_EQ(time("decode_rate"), 100);                 // of decode passes alone
    EXPECT_DOUBLE_EQ(time("last_start_prefill_seconds"), 0.5);  // groups run side by side
    EXPECT_DOUBLE_EQ(time("last_start_decode_seconds"), 1);
    EXPECT_DOUBLE_EQ(time("last_start_draft_seconds"), 0.25);
    EXPECT_EQ(count("all_starts_tokens_written"), 220);
    EXPECT_DOUBLE_EQ(time("all_starts_seconds"), 8);
}

}  // namespace
}  // namespace quadrille
