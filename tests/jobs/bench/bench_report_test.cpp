// SPDX-License-Identifier: Apache-2.0
#include "jobs/bench/bench_report.h"

#include "jobs/bench/bench.h"
#include "jobs/bench/bench_floor.h"
#include "jobs/common/results_tsv.h"
#include "jobs/roofline/machine_rates.h"
#include "tests/support/expect_error.h"
#include "tests/support/full_model.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using test::expect_error;
using test::TempFolder;

constexpr Storage kFour = {.bits = 4, .codebook = Codebook::mul1, .dtype = Dtype::f16};

// 2 records of 3 tokens: one from prefill, one or two decode passes.
BenchRun make_run(int64_t k, int64_t concurrency) {
    BenchRun run;
    run.k = k;
    run.concurrency = concurrency;
    run.stats.prefill_tokens = 200;
    run.stats.prefill_seconds = 0.5;
    run.stats.decode_steps = 4;
    run.stats.decode_records = 6;
    run.stats.decode_seconds = 0.2;
    run.stats.draft_seconds = 0.02;
    run.stats.verify_seconds = 0.12;
    run.stats.accept_seconds = 0.01;
    run.stats.context_seconds = 0.03;
    run.prefill_passes = 2;
    run.prefill_collectives = 0.2;
    run.decode_collectives = 0.08;
    run.decode_emitted = 12;
    run.draft_steps = 8;
    run.accepted = 6;
    run.work[WorkKind::kda] = {.weights = 3e6, .state = 1e6, .activations = 5e5, .decoded = 2e6};
    run.work[WorkKind::head] = {.weights = 1e6, .state = 0, .activations = 5e5, .decoded = 1e6};
    run.floors = {{WorkKind::kda, 0.01}, {WorkKind::head, 0.005}};
    run.decode_floor = 0.015;
    run.prefill_floor = 0.15;
    run.collective_floor = 0.01;
    run.prefill_collective_floor = 0.1;
    run.tokens = {{1, 2, 3}, {4, 5, 6}};
    return run;
}

BenchReport make_report() {
    BenchReport report;
    report.date = "2026-01-02T03:04:05Z";
    report.version = "0.1.0 abc";
    report.hardware = "Some CPU\tof ours";
    report.target = "demo";
    report.draft = "drafter";
    report.backend = "cpu";
    report.comm = "mpi";
    report.ranks = 2;
    report.records = 2;
    report.prompts = "100 made-up tokens";
    report.draws = "greedy";
    report.prompt_tokens = 200;
    report.new_tokens = 3;
    report.rates = {.read = 2.5e10, .decode = {{kFour, 1.25e9}}};
    report.runs = {make_run(0, 1), make_run(2, 4)};
    return report;
}

std::vector<std::vector<std::string>> fields_of(const std::string& text) {
    std::vector<std::vector<std::string>> rows;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        rows.emplace_back(1);
        for (const char c : line) {
            if (c == '\t') {
                rows.back().emplace_back();
            } else {
                rows.back().back() += c;
            }
        }
    }
    return rows;
}

std::string content(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(BenchReport, TellsHowTokensWereDrawn) {
    EXPECT_EQ(draws_text({}), "greedy");
    RecordOptions options;
    options.temperature = 0.7;
    options.top_p = 0.95;
    options.top_k = 40;
    options.logprobs = 0;
    EXPECT_EQ(draws_text(options), "temperature 0.7, top_p 0.95, top_k 40, logprobs 0");
    BenchReport report = make_report();
    EXPECT_EQ(bench_rows(report).find("temperature"), std::string::npos);
    report.draws = draws_text(options);
    EXPECT_NE(bench_rows(report).find("K 2, temperature 0.7, top_p 0.95"), std::string::npos);
    EXPECT_NE(bench_table(report).find("temperature 0.7, top_p 0.95"), std::string::npos);
}

TEST(BenchRun, DerivesRatesFromTimes) {
    const BenchRun run = make_run(2, 4);
    EXPECT_DOUBLE_EQ(run.prefill_rate(), 400.0);
    EXPECT_DOUBLE_EQ(run.decode_rate(), 60.0);
    EXPECT_DOUBLE_EQ(run.step_seconds(), 0.05);
    EXPECT_DOUBLE_EQ(run.accept_length(), 1.75);
    // The floor of the ops and that of the collectives, 10 ms a pass.
    EXPECT_DOUBLE_EQ(run.decode_fraction(), 0.5);
    EXPECT_DOUBLE_EQ(run.prefill_fraction(), 0.5);
}

TEST(BenchRun, WithoutDecodePassesOrFloorHasNoFraction) {
    BenchRun run = make_run(0, 1);
    run.decode_floor = 0;
    run.prefill_floor = 0;
    EXPECT_TRUE(std::isnan(run.decode_fraction()));
    EXPECT_TRUE(std::isnan(run.prefill_fraction()));
    EXPECT_TRUE(std::isnan(BenchRun{}.decode_rate()));
    EXPECT_TRUE(std::isnan(BenchRun{}.accept_length()));
}

TEST(BenchRun, DigestNamesTheTokens) {
    BenchRun run = make_run(0, 1);
    const std::string digest = run.digest();
    EXPECT_EQ(digest, make_run(2, 4).digest());
    run.tokens = {{1, 2}, {3, 4, 5, 6}};  // the same tokens in other records
    EXPECT_NE(run.digest(), digest);
    run.tokens = {{1, 2, 3}, {4, 5, 7}};
    EXPECT_NE(run.digest(), digest);
}

TEST(FirstDifference, NamesRunRecordAndToken) {
    std::vector<BenchRun> runs = {make_run(0, 1), make_run(2, 1), make_run(2, 4)};
    EXPECT_EQ(first_difference(runs), "");
    EXPECT_EQ(first_difference({}), "");
    runs[2].tokens[1][2] = 9;
    EXPECT_EQ(
        first_difference(runs),
        "K = 2, concurrency 4 against K = 0, concurrency 1: record 1 differs from token 2 on");
    runs[1].tokens[0].pop_back();
    EXPECT_EQ(
        first_difference(runs),
        "K = 2, concurrency 1 against K = 0, concurrency 1: record 0 differs from token 2 on");
    runs[1].tokens.pop_back();
    EXPECT_EQ(first_difference(runs),
              "K = 2, concurrency 1 against K = 0, concurrency 1: 1 records, not 2");
}

TEST(BenchRows, HaveTheColumnsOfTheResults) {
    const auto rows = fields_of(bench_rows(make_report()));
    const size_t columns = fields_of(kResultColumns).front().size();
    std::set<std::string> keys;
    for (const auto& row : rows) {
        ASSERT_EQ(row.size(), columns);
        EXPECT_EQ(row[0], "2026-01-02T03:04:05Z");
        EXPECT_EQ(row[1], "0.1.0 abc");
        EXPECT_EQ(row[2], "Some CPU of ours");
        EXPECT_TRUE(keys.insert(row[3] + "|" + row[4]).second) << row[3] << " twice";
    }
    const auto value = [&](const std::string& bench, const std::string& run) {
        for (const auto& row : rows) {
            if (row[3] == "bench " + bench && row[4].ends_with(run))
                return row[5] + " " + row[6] + " " + row[7];
        }
        return std::string();
    };
    EXPECT_EQ(value("read", "2 ranks"), "25 GB/s ");
    EXPECT_EQ(value("decode 4 bits mul1", "2 ranks"), "1.25 G weights/s ");
    EXPECT_EQ(value("decode", "batch 4, K 2"), "60 tokens/s 0.500");
    EXPECT_EQ(value("step", "batch 1, K 0"), "50 ms 0.500");
    EXPECT_EQ(value("step draft", "batch 4, K 2"), "5 ms ");
    EXPECT_EQ(value("step draft", "batch 1, K 0"), "");
    EXPECT_EQ(value("step floor", "batch 1, K 0"), "25 ms ");
    EXPECT_EQ(value("step collectives", "batch 1, K 0"), "20 ms 0.500");
    EXPECT_EQ(value("step bytes", "batch 1, K 0"), "6 MB ");
    EXPECT_EQ(value("step EXL3 weights", "batch 1, K 0"), "3 M ");
    EXPECT_EQ(value("accept length", "batch 4, K 2"), "1.75 tokens ");
}

TEST(BenchRows, LeaveOutWhatIsNotKnown) {
    BenchReport report = make_report();
    report.rates = {};
    report.runs.resize(1);
    report.runs[0].decode_floor = 0;
    report.runs[0].stats.decode_steps = 0;
    const std::string rows = bench_rows(report);
    EXPECT_EQ(rows.find("nan"), std::string::npos) << rows;
    EXPECT_EQ(rows.find("bench read"), std::string::npos);
    EXPECT_EQ(rows.find("step floor"), std::string::npos);
    EXPECT_EQ(rows.find("bench step\t"), std::string::npos);
}

TEST(BenchJson, HoldsEveryRunAndWhetherTheyAgree) {
    BenchReport report = make_report();
    const auto json = nlohmann::json::parse(bench_json(report));
    EXPECT_EQ(json["ranks"], 2);
    EXPECT_EQ(json["tokens_equal"], true);
    EXPECT_EQ(json["exl3_weights_per_second"]["4 bits mul1"], 1.25e9);
    ASSERT_EQ(json["runs"].size(), 2u);
    const auto& run = json["runs"][1];
    EXPECT_EQ(run["k"], 2);
    EXPECT_EQ(run["decode_fraction"], 0.5);
    EXPECT_EQ(run["step_work"]["all"]["exl3_weights"], 3e6);
    EXPECT_EQ(run["step_work"]["KDA"]["state_bytes"], 1e6);
    EXPECT_EQ(run["step_work"]["KDA"]["floor_seconds"], 0.01);
    EXPECT_EQ(run["tokens_digest"], make_run(0, 1).digest());
    report.runs[1].tokens[0][0] = 7;
    report.runs[0].stats.decode_steps = 0;  // no number, but still JSON
    const auto other = nlohmann::json::parse(bench_json(report));
    EXPECT_EQ(other["tokens_equal"], false);
    EXPECT_TRUE(other["runs"][0]["step_seconds"].is_null());
}

TEST(BenchTable, ShowsSpeedSplitAndFloor) {
    const std::string text = bench_table(make_report());
    for (const char* part : {"25.0 GB/s a rank", "1.250 G weights/s a rank, 4 bits mul1", "60.0",
                             "50 %", "1.750", "25.000", "batch 4, K = 2", "3.00 M", "KDA"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
}

TEST(AppendResults, WritesTheColumnsOnce) {
    const TempFolder folder;
    const auto path = folder / "results.tsv";
    append_results(path, "");  // a check alone
    append_results(path, "a\n");
    append_results(path, "b\nc\n");
    EXPECT_EQ(content(path), std::string(kResultColumns) + "\na\nb\nc\n");
}

TEST(AppendResults, EndsALineThatWasLeftOpen) {
    const TempFolder folder;
    const auto path = folder / "results.tsv";
    std::ofstream(path) << kResultColumns << "\nold";
    append_results(path, "new\n");
    EXPECT_EQ(content(path), std::string(kResultColumns) + "\nold\nnew\n");
    std::ofstream(path, std::ios::trunc) << kResultColumns;
    append_results(path, "new\n");
    EXPECT_EQ(content(path), std::string(kResultColumns) + "\nnew\n");
}

TEST(AppendResults, RefusesAnotherFile) {
    const TempFolder folder;
    const auto path = folder / "notes.txt";
    std::ofstream(path) << "date\tvalue\n";
    expect_error(ErrorKind::input, {"notes.txt", "expected a first line of", "date value"},
                 [&] { append_results(path, "x\n"); });
    EXPECT_EQ(content(path), "date\tvalue\n");
    expect_error(ErrorKind::io, {"none/results.tsv", "cannot open"},
                 [&] { append_results(folder / "none/results.tsv", ""); });
}

TEST(MadeUpPrompts, AreTheSameForEver) {
    const std::vector<Prompt> prompts = made_up_prompts(3, 50, 1000);
    ASSERT_EQ(prompts.size(), 3u);
    std::set<int32_t> seen;
    for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(prompts[i].index, static_cast<int64_t>(i));
        ASSERT_EQ(prompts[i].tokens.size(), 50u);
        for (const int32_t token : prompts[i].tokens) {
            EXPECT_TRUE(token >= 0 && token < 1000);
            seen.insert(token);
        }
    }
    EXPECT_GT(seen.size(), 120u);
    // 1442695040888963407 >> 33 = 167951807.
    EXPECT_EQ(prompts[0].tokens[0], 167951807 % 1000);
    EXPECT_EQ(made_up_prompts(1, 50, 1000)[0].tokens, prompts[0].tokens);
}

TEST(BenchFloor, IsTheMeanOverPassesOfEveryBatchSize) {
    StepModel model;
    model.config = test::full_config();
    model.storage = [](const std::string&) -> std::optional<Storage> { return Storage{}; };
    model.plan = plan_shards(model.config, 1, 0);
    const MachineRates rates{.read = 1e12};
    const auto floor = [&](size_t records) {
        return floor_seconds(
            step_work(model, {.contexts = std::vector<int64_t>(records, 100), .k = 0}), rates);
    };
    BenchRun run;  // 4 passes, 200 prompt tokens in 2 passes
    run.stats.decode_steps = 4;
    run.stats.prefill_tokens = 200;
    run.prefill_passes = 2;
    set_floor(run, model, rates, std::vector<int64_t>{0, 3, 0, 1}, 100);
    EXPECT_DOUBLE_EQ(run.decode_floor, 0.75 * floor(1) + 0.25 * floor(3));
    EXPECT_DOUBLE_EQ(run.prefill_floor,
                     2 * floor_seconds(prefill_work(model, 100, {0}, false), rates));
    double sum = 0;
    for (const auto& [kind, seconds] : run.floors) sum += seconds;
    EXPECT_DOUBLE_EQ(sum, run.decode_floor);
    sum = 0;
    for (const auto& [kind, seconds] : run.prefill_floors) sum += seconds;
    EXPECT_DOUBLE_EQ(sum, run.prefill_floor);
    const double one_state = 34.0 * 4 * (64 * 128 * 128 + 3 * 24576 + 4 * 8192 + 64);
    EXPECT_NEAR(run.work[WorkKind::kda].state, 1.5 * one_state, 1.0);  // 1.5 records a pass
    set_floor(run, model, rates, std::vector<int64_t>{0, 4}, 100);     // sets, does not add
    EXPECT_DOUBLE_EQ(run.decode_floor, floor(1));
}

TEST(Ruler, MeasuresWhatIsAskedFor) {
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    int64_t calls = 0;
    const double seconds = best_seconds(*backend, [&] { ++calls; });
    EXPECT_GE(seconds, 0.0);
    EXPECT_LT(seconds, 1e-4);
    EXPECT_GT(calls, 1000);
    const std::vector<OpWork> ops = {{.kind = WorkKind::kda, .weights = 1},
                                     {.kind = WorkKind::head, .decoded = 1, .storage = kFour}};
    EXPECT_EQ(exl3_forms(ops), std::set<Storage>{kFour});
}

}  // namespace
}  // namespace quadrille
