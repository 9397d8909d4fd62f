// SPDX-License-Identifier: Apache-2.0
// Results are read back with test::Golden (HDF5 directly) where the layout matters, and with
// GenerationReader for round trips.
#include "io/results/result_writer.h"

#include "io/h5/schema.h"
#include "io/results/generation_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/made_results.h"
#include "tests/support/peak_memory.h"
#include "tests/support/results_folder.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <unistd.h>

namespace quadrille {
namespace {

using test::expect_equal;
using test::expect_error;
using test::Golden;
using test::make_generation;
using test::TempFolder;
using ResultWriterTest = test::ResultsFolderTest;

namespace fs = std::filesystem;

void expect_acceptance_of_four(const Golden& file) {
    // Record 0: 6 tokens after the first, in steps that accept 0, 1 and 2 drafts.
    EXPECT_EQ(file.read<int64_t>("acceptance/steps").values, (std::vector<int64_t>{3, 0, 0, 1}));
    EXPECT_EQ(file.read<int64_t>("acceptance/accepted").values, (std::vector<int64_t>{3, 0, 0, 0}));
    EXPECT_EQ(file.read<int64_t>("acceptance/emitted").values, (std::vector<int64_t>{6, 0, 0, 1}));
    EXPECT_EQ(file.read<int64_t>("acceptance/drafted").values, (std::vector<int64_t>{6, 0, 0, 1}));
    const auto positions = file.read<int64_t>("acceptance/by_position");
    EXPECT_EQ(positions.shape, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(positions.values, (std::vector<int64_t>{2, 1, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(file.read<int64_t>("acceptance/histogram").values,
              (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0}));
    EXPECT_EQ(file.number("acceptance", "accepted_per_step"), 3.0 / 4);
    EXPECT_EQ(file.number("acceptance", "emitted_per_step"), 7.0 / 4);
    EXPECT_EQ(file.number("acceptance", "accept_length"), 1 + 3.0 / 4);
}

TEST_F(ResultWriterTest, WritesTheSchemaInInputOrder) {
    const Ids ids = std::vector<std::string>{"a", "b", "c", "grün"};
    ResultOptions o = options(4);
    o.ids = {&ids};
    {
        ResultWriter writer(o);
        writer.add(make_generation(3, 2, 2));
        writer.add(test::make_failure(2, "empty prompt"));
        writer.add(make_generation(0, 7, 2));
        writer.commit();
        writer.add(make_generation(1, 1, 2));
        const ResultSummary summary = writer.finish(
            {{"version", "1"}, {"k", int64_t{2}}, {"hosts", std::vector<std::string>{"x", "y"}}});
        EXPECT_EQ(summary.records, 4);
        EXPECT_EQ(summary.errors, 1);
        EXPECT_EQ(summary.tokens, 10);
    }
    EXPECT_FALSE(fs::exists(parts()));
    EXPECT_FALSE(fs::exists(out_.string() + ".tmp"));
    const Golden file(out_);
    EXPECT_EQ(file.number("/", "quadrille_format"), 1);
    EXPECT_EQ(file.text("/", "kind"), "generations");
    EXPECT_EQ(file.number("/", "complete"), 1);
    EXPECT_EQ(file.number("/", "errors"), 1);
    EXPECT_EQ(file.text("provenance", "version"), "1");
    EXPECT_EQ(file.read<int64_t>("generations/offsets").values,
              (std::vector<int64_t>{0, 7, 8, 8, 10}));
    const auto tokens = file.read<int32_t>("generations/tokens").values;
    EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 31, 93, 94}));
    EXPECT_EQ(file.read<uint8_t>("generations/status").values, (std::vector<uint8_t>{0, 0, 1, 0}));
    EXPECT_EQ(file.read<uint8_t>("generations/finish_reason").values,
              (std::vector<uint8_t>{3, 3, 5, 1}));
    EXPECT_EQ(file.read_strings("generations/error"),
              (std::vector<std::string>{"", "", "empty prompt", ""}));
    EXPECT_EQ(file.read_strings("generations/id"),
              (std::vector<std::string>{"a", "b", "c", "grün"}));
    EXPECT_EQ(file.read_strings("generations/text"),
              (std::vector<std::string>{"text 0", "text 1", "", "text 3"}));
    EXPECT_EQ(file.read<int64_t>("generations/prompt_index").values,
              (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(file.read<int64_t>("generations/prompt_tokens").values,
              (std::vector<int64_t>{5, 6, 0, 8}));
    expect_acceptance_of_four(file);
    EXPECT_FALSE(file.has("acceptance/trace"));
    EXPECT_FALSE(file.has("logprobs"));
    EXPECT_FALSE(file.has("generations/source"));
    const h5::File ours = h5::File::open(out_);
    EXPECT_EQ(ours.dataset("generations/status").attribute("names"),
              h5::Value(std::vector<std::string>{"ok", "error", "cancelled"}));
    EXPECT_EQ(
        ours.dataset("generations/finish_reason").attribute("names"),
        h5::Value(std::vector<std::string>{"none", "eos", "stop", "length", "context", "error"}));
}

TEST_F(ResultWriterTest, WritesACompleteFileOfNoRecords) {
    for (const int64_t k : {0, 2}) {
        ResultOptions o = options(0, k);
        o.overwrite = true;
        o.layout.trace = true;
        o.layout.logprobs = 1;
        ResultWriter writer(o);
        const ResultSummary summary = writer.finish({});
        EXPECT_TRUE(std::isnan(summary.accept_length()));
        const Golden file(out_);
        EXPECT_EQ(file.number("/", "complete"), 1);
        EXPECT_TRUE(std::isnan(file.number("acceptance", "accept_length")));
        EXPECT_EQ(file.read<int64_t>("generations/offsets").values, (std::vector<int64_t>{0}));
        EXPECT_EQ(file.read<int64_t>("acceptance/histogram").shape,
                  (std::vector<int64_t>{0, k + 1}));
        EXPECT_EQ(GenerationReader(out_, schema::kGenerations).record_count(), 0);
    }
}

TEST_F(ResultWriterTest, WritesAShardOfTheRecords) {
    const Ids ids = std::vector<int64_t>{10, 11, 12, 13, 14, 15};
    ResultOptions o = options(0);
    o.ids = {&ids};
    for (const int64_t index : {1, 3, 5}) o.records.push_back({0, index, 0});
    ResultWriter writer(o);
    for (const int64_t index : {5, 1, 3}) writer.add(make_generation(index, 2, 2));
    writer.finish({});
    const Golden file(out_);
    EXPECT_EQ(file.read<int64_t>("generations/prompt_index").values,
              (std::vector<int64_t>{1, 3, 5}));
    EXPECT_EQ(file.read<int64_t>("generations/id").values, (std::vector<int64_t>{11, 13, 15}));
}

TEST_F(ResultWriterTest, StoresTextThatHdf5CannotHold) {
    ResultWriter writer(options(1));
    Generation g = make_generation(0, 2, 2);
    g.text = std::string("a\0b\xFF", 4);
    writer.add(g);
    writer.finish({});
    EXPECT_EQ(Golden(out_).read_strings("generations/text").front(), "a\uFFFDb\uFFFD");
}

TEST_F(ResultWriterTest, CommitsPartsOf256Records) {
    {
        ResultWriter writer(options(600));
        for (int64_t i = 600; i-- > 0;) writer.add(make_generation(i, i % 5, 2));
        std::vector<std::string> names;
        for (const fs::path& part : list_parts(parts())) names.push_back(part.filename());
        EXPECT_EQ(names, (std::vector<std::string>{"part-0-000000.h5", "part-0-000001.h5"}));
        const Golden part(parts() / "part-0-000000.h5");
        EXPECT_EQ(part.text("/", "kind"), "part");
        EXPECT_EQ(part.number("/", "quadrille_format"), 1);
        const auto indices = part.read<int64_t>("generations/prompt_index").values;
        ASSERT_EQ(indices.size(), 256u);
        EXPECT_EQ(indices.front(), 599);
        EXPECT_EQ(part.read_strings("generations/text")[1], "text 598");
        const Golden run(parts() / "run.h5");
        EXPECT_EQ(run.text("/", "kind"), "run");
        EXPECT_EQ(run.text("fingerprint", "prompts"), "abc");
        EXPECT_EQ(run.number("fingerprint", "k"), 2);
        writer.finish({});
    }
    const auto read = GenerationReader(out_, schema::kGenerations).read(0, 600);
    for (int64_t i = 0; i < 600; ++i)
        expect_equal(read[static_cast<size_t>(i)], make_generation(i, i % 5, 2));
}

TEST_F(ResultWriterTest, KeepsCommittedPartsAndRemovesTheRest) {
    {
        const ResultWriter writer(options(3));
        EXPECT_TRUE(fs::exists(parts() / "run.h5"));
    }
    EXPECT_FALSE(fs::exists(parts()));
    {
        ResultWriter writer(options(3));
        writer.add(make_generation(1, 4, 2));
        writer.commit();
        writer.commit();  // nothing held back: no second part
    }
    EXPECT_EQ(list_parts(parts()).size(), 1u);
    EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ResultWriterTest, TheFirstPartInNameOrderCounts) {
    ResultWriter writer(options(2));
    writer.add(make_generation(0, 4, 2));
    writer.commit();
    PartWriter other(parts(), 1, writer.layout(), "");
    other.add(make_generation(0, 9, 2));
    other.commit();
    writer.add(make_generation(1, 3, 2));
    writer.finish({});
    EXPECT_EQ(Golden(out_).read<int64_t>("generations/offsets").values,
              (std::vector<int64_t>{0, 4, 7}));
}

TEST_F(ResultWriterTest, PartNumbersGoOn) {
    ResultWriter writer(options(2));
    writer.add(make_generation(0, 4, 2));
    writer.commit();
    PartWriter again(parts(), 0, writer.layout(), "");
    again.add(make_generation(1, 4, 2));
    again.commit();
    EXPECT_TRUE(fs::exists(parts() / "part-0-000001.h5"));
}

TEST_F(ResultWriterTest, NeverReplacesWhatItMayNot) {
    write_complete(2);
    expect_error(ErrorKind::usage, {"generations.h5", "exists", "overwrite"},
                 [&] { ResultWriter(options(2)); });
    EXPECT_FALSE(fs::exists(parts()));
    ResultOptions o = options(1);
    o.overwrite = true;
    {
        ResultWriter writer(o);
        writer.add(make_generation(0, 5, 2));
        EXPECT_EQ(GenerationReader(out_, schema::kGenerations).record_count(), 2);  // until the end
        writer.finish({});
    }
    EXPECT_EQ(GenerationReader(out_, schema::kGenerations).record_count(), 1);

    o.out = folder_.write("notes.txt", "important");
    expect_error(ErrorKind::usage, {"notes.txt", "no result of this program", "not an HDF5 file"},
                 [&] { ResultWriter{o}; });
    o.out = folder_ / "prompts.h5";
    {
        h5::File file = h5::File::create(o.out);
        schema::stamp(file, schema::kPrompts);
    }
    expect_error(ErrorKind::usage, {"prompts.h5", "kind 'prompts'"}, [&] { ResultWriter{o}; });
    o.out = folder_.path();
    expect_error(ErrorKind::usage, {"is a folder"}, [&] { ResultWriter{o}; });
    o.out = folder_ / "incomplete.h5";
    {
        h5::File file = h5::File::create(o.out);
        schema::stamp(file, schema::kGenerations);
    }
    o.overwrite = false;
    expect_error(ErrorKind::usage, {"incomplete.h5 exists"}, [&] { ResultWriter{o}; });
    fs::resize_file(o.out, fs::file_size(o.out) / 2);
    expect_error(ErrorKind::usage, {"incomplete.h5", "truncated"}, [&] { ResultWriter{o}; });
}

TEST_F(ResultWriterTest, SaysSoBeforeTheRunWhenItCannotWrite) {
    ResultOptions o = options(1);
    o.out = folder_ / "no/such/folder/out.h5";
    expect_error(ErrorKind::io, {"no/such/folder", "No such file"}, [&] { ResultWriter{o}; });
    o.out = "/proc/out.h5";
    expect_error(ErrorKind::io, {"/proc"}, [&] { ResultWriter{o}; });
    o.out = folder_.write("file", "") / "out.h5";
    expect_error(ErrorKind::io, {"Not a directory"}, [&] { ResultWriter{o}; });
    o.out = "";
    expect_error(ErrorKind::usage, {"names no file"}, [&] { ResultWriter{o}; });
    if (::geteuid() != 0) {
        o.out = folder_ / "closed/out.h5";
        fs::create_directory(folder_ / "closed");
        fs::permissions(folder_ / "closed", fs::perms::owner_read);
        expect_error(ErrorKind::io, {"closed", "Permission denied"}, [&] { ResultWriter{o}; });
    }
}

TEST_F(ResultWriterTest, RefusesRecordsTheRunDoesNotHave) {
    ResultWriter writer(options(2));
    writer.add(make_generation(0, 3, 2));
    expect_error(ErrorKind::internal, {"record 0", "twice"},
                 [&] { writer.add(make_generation(0, 3, 2)); });
    expect_error(ErrorKind::internal, {"record 2", "not of this run"},
                 [&] { writer.add(make_generation(2, 3, 2)); });
    expect_error(ErrorKind::internal, {"record 1", "never finished"}, [&] { writer.finish({}); });
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(fs::exists(out_.string() + ".tmp"));
    writer.add(make_generation(1, 3, 2));
    writer.finish({});
    EXPECT_TRUE(fs::exists(out_));
}

TEST_F(ResultWriterTest, ChecksTheIdentitiesOfEveryRecord) {
    const Generation good = make_generation(0, 12, 2);
    EXPECT_EQ(find_violation(good, 2), "");
    const auto breaks = [&](const char* part, const std::function<void(Generation&)>& change) {
        Generation bad = good;
        change(bad);
        EXPECT_NE(find_violation(bad, 2).find(part), std::string::npos)
            << part << ": " << find_violation(bad, 2);
        ResultOptions o = options(1);
        ResultWriter writer(o);
        expect_error(ErrorKind::internal, {"record 0", part}, [&] { writer.add(bad); });
    };
    breaks("sum of histogram", [](Generation& g) { ++g.acceptance.steps; });
    breaks("weighted sum", [](Generation& g) { ++g.acceptance.accepted; });
    breaks("by_position[0]", [](Generation& g) { --g.acceptance.by_position[0]; });
    breaks("by_position[1]", [](Generation& g) { ++g.acceptance.by_position[1]; });
    breaks("drafted", [](Generation& g) { g.acceptance.drafted = g.acceptance.accepted - 1; });
    breaks("drafted", [](Generation& g) { g.acceptance.drafted = 2 * g.acceptance.steps + 1; });
    breaks("emitted", [](Generation& g) { g.acceptance.emitted = g.acceptance.accepted - 1; });
    breaks("emitted", [](Generation& g) {
        g.acceptance.emitted = g.acceptance.accepted + g.acceptance.steps + 1;
    });
    breaks("tokens", [](Generation& g) { g.tokens.pop_back(); });
    breaks("length of histogram", [](Generation& g) { g.acceptance.histogram.pop_back(); });
    breaks("length of by_position", [](Generation& g) { g.acceptance.by_position.push_back(0); });
    breaks("negative", [](Generation& g) {
        g.acceptance.histogram = {g.acceptance.steps + 1, -1, 0};
    });
    ResultOptions o = options(1);
    o.layout.trace = true;
    ResultWriter writer(o);
    Generation bad = good;
    bad.acceptance.trace.pop_back();
    writer.add(bad);
    expect_error(ErrorKind::internal, {"record 0", "trace length"}, [&] { writer.commit(); });
}

// In memory where there is /dev/shm: 782 parts are as many waits for a disk.
TEST_F(ResultWriterTest, AssemblesLargeResultsInBoundedMemory) {
    constexpr int64_t kRecords = 200'000;
    const TempFolder memory(fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path());
    ResultOptions o = options(kRecords);
    o.out = memory / "large.h5";
    o.layout.text = false;
    const int64_t before = test::peak_memory_kib();
    ResultWriter writer(std::move(o));
    // Sixteen slots finish in a jumbled order, as a batch does.
    std::vector<int64_t> order(kRecords);
    std::iota(order.begin(), order.end(), 0);
    uint64_t state = 1;
    for (size_t i = 0; i + 16 < order.size(); ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(order[i], order[i + (state >> 60)]);
    }
    for (const int64_t index : order) writer.add(make_generation(index, 1 + index % 200, 2));
    const ResultSummary summary = writer.finish({});
    EXPECT_EQ(summary.records, kRecords);
    // 20 million tokens would be 80 MB; the index takes 16 + 8 + 8 bytes a record.
    EXPECT_LT(test::peak_memory_kib() - before, 40 * 1024);
    const GenerationReader reader(memory / "large.h5", schema::kGenerations);
    ASSERT_EQ(reader.record_count(), kRecords);
    for (const int64_t index : {0, 1, 99'999, 199'998, 199'999})
        expect_equal(reader.read(index, 1).front(), [&] {
            Generation g = make_generation(index, 1 + index % 200, 2);
            g.text.clear();
            return g;
        }());
    int64_t row = 0;
    for (const RecordKey& key : reader.keys(0, kRecords)) ASSERT_EQ(key.prompt_index, row++);
}

}  // namespace
}  // namespace quadrille
