// SPDX-License-Identifier: Apache-2.0
// A run that is started again: what it takes up, what it sets aside, when it refuses.
#include "io/files.h"
#include "io/h5/schema.h"
#include "io/h5/seal.h"
#include "io/results/generation_reader.h"
#include "io/results/result_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/interrupted_run.h"
#include "tests/support/made_results.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fcntl.h>
#include <functional>
#include <unistd.h>

namespace quadrille {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using test::make_generation;
using ResumeTest = test::InterruptedRunTest;

namespace fs = std::filesystem;

TEST_F(ResumeTest, TakesUpWhatWasDoneAndMergesStatistics) {
    start({{4, 1}, {3}});
    ResultWriter writer(options());
    EXPECT_TRUE(writer.notices().empty());
    EXPECT_EQ(writer.remaining(), 3);
    EXPECT_EQ(writer.resumed().records, 3);
    EXPECT_EQ(writer.resumed().tokens, 7 + 4 + 6);
    EXPECT_EQ(writer.restarts(), 1);
    EXPECT_EQ(writer.computed(), 3);
    EXPECT_TRUE(writer.is_done({.prompt_index = 4}));
    EXPECT_FALSE(writer.is_done({.prompt_index = 0}));
    for (const int64_t i : {0, 2, 5}) writer.add(make_generation(i, 3 + i, 2));
    EXPECT_EQ(writer.computed(), 6);
    const ResultSummary summary = writer.finish({});
    EXPECT_EQ(summary.records, 6);
    EXPECT_EQ(summary.tokens, 3 + 4 + 5 + 6 + 7 + 8);
    expect_whole();
    EXPECT_FALSE(fs::exists(parts()));
}

TEST_F(ResumeTest, CountsRecordsThatWereLost) {
    {
        ResultWriter writer(options());
        writer.add(make_generation(0, 3, 2));
        writer.commit();
        writer.add(make_generation(1, 4, 2));  // held back, and lost
    }
    {
        ResultWriter writer(options());
        EXPECT_EQ(writer.computed(), 2);
        EXPECT_EQ(writer.remaining(), 5);
    }  // computed nothing: no start
    ResultWriter writer(options());
    EXPECT_EQ(writer.restarts(), 1);
    complete(writer);
    EXPECT_EQ(writer.computed(), 7);
    expect_whole();
}

TEST_F(ResumeTest, RefusesOtherSettingsFieldByField) {
    start({{0}});
    ResultOptions o = options();
    o.fingerprint["k"] = int64_t{3};
    o.fingerprint["temperature"] = 0.5;
    o.fingerprint.erase("prompts_digest");
    expect_error(ErrorKind::usage,
                 {"generations.h5.parts", "k was 2, is 3", "prompts_digest was abc, is unknown",
                  "temperature was 0, is 0.5"},
                 [&] { ResultWriter{o}; });
    o.overwrite = true;
    expect_error(ErrorKind::usage, {"k was 2, is 3"}, [&] { ResultWriter{o}; });
    ResultWriter writer(options());
    EXPECT_EQ(writer.restarts(), 1);  // refusals are none
    complete(writer);
}

// Parts of a version whose fingerprint had fewer fields are this run's, under the name it gave
// them.
TEST_F(ResumeTest, GoesOnWhereAFieldWasNotRecorded) {
    start({{0}});
    ResultOptions o = options();
    o.fingerprint["config_digest"] = std::string("abc");
    const ResultWriter writer(o);
    ASSERT_EQ(writer.notices().size(), 1u);
    EXPECT_NE(writer.notices()[0].find("did not record config_digest"), std::string::npos);
    EXPECT_EQ(writer.restarts(), 1);
    EXPECT_EQ(writer.resumed().records, 1);
    EXPECT_EQ(writer.run(), run_name(options().fingerprint));
}

TEST_F(ResumeTest, AFolderWithoutPartsIsNobodys) {
    fs::create_directory(parts());
    folder_.write("generations.h5.parts/run.h5", "torn");
    folder_.write("generations.h5.parts/part-0-000000.h5.tmp", "torn");
    folder_.write("generations.h5.tmp", "torn");
    fs::create_directory(parts().string() + ".done");  // a finished run was killed at its very end
    folder_.write("generations.h5.parts.done/part-0-000001.h5", "done");
    ResultWriter writer(options());
    EXPECT_FALSE(fs::exists(parts() / "part-0-000000.h5.tmp"));
    complete(writer);
    expect_whole();
    EXPECT_FALSE(fs::exists(parts()));
    EXPECT_FALSE(fs::exists(out_.string() + ".tmp"));
    EXPECT_FALSE(fs::exists(parts().string() + ".done"));
}

TEST_F(ResumeTest, RefusesPartsOfAnUnknownRun) {
    start({{0}});
    const std::string run = (parts() / "run.h5").string();
    fs::resize_file(run, fs::file_size(run) / 2);
    expect_error(ErrorKind::input, {"run.h5", "truncated or damaged"}, [&] { start({}); });
    fs::remove(run);
    expect_error(ErrorKind::usage, {"generations.h5.parts", "unknown run", "run.h5 is missing"},
                 [&] { start({}); });
    EXPECT_TRUE(fs::exists(part(0)));
    fs::remove_all(parts());
    folder_.write("generations.h5.parts", "a file");
    expect_error(ErrorKind::usage, {"generations.h5.parts", "no folder"}, [&] { start({}); });
}

// A part that was cut, altered anywhere, replaced, or that belongs to another run, is kept under
// another name and its records are computed again.
TEST_F(ResumeTest, SetsDamagedAndForeignPartsAside) {
    const auto spoil = [&](const char* what, const std::function<void()>& change,
                           const char* defect) {
        SCOPED_TRACE(what);
        fs::remove_all(parts());
        fs::remove(out_);
        start({{0, 1}, {2}, {3}});
        change();
        ResultWriter writer(options());
        ASSERT_EQ(writer.notices().size(), 1u);
        EXPECT_NE(writer.notices()[0].find("part-0-000001.h5"), std::string::npos);
        EXPECT_NE(writer.notices()[0].find(defect), std::string::npos) << writer.notices()[0];
        EXPECT_NE(writer.notices()[0].find("computed again"), std::string::npos);
        EXPECT_EQ(writer.remaining(), 3);
        EXPECT_TRUE(fs::exists(part(1).string() + ".bad"));
        complete(writer);
        expect_whole();
        EXPECT_TRUE(fs::exists(part(1).string() + ".bad"));  // somebody may want to look at it
    };
    const auto size = [&] { return fs::file_size(part(1)); };
    const char* const damaged = "truncated or damaged";
    spoil(
        "empty", [&] { fs::resize_file(part(1), 0); }, damaged);
    spoil(
        "cut by a byte", [&] { fs::resize_file(part(1), size() - 1); }, damaged);
    spoil(
        "cut by half", [&] { fs::resize_file(part(1), size() / 2); }, damaged);
    spoil(
        "longer", [&] { fs::resize_file(part(1), size() + 1); }, damaged);
    for (const double where : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999}) {
        spoil(
            "one byte",
            [&] {
                FileHandle file(part(1), O_RDWR);
                char byte = 0;
                const auto at = static_cast<int64_t>(where * static_cast<double>(file.size()));
                file.read(at, std::span(&byte, 1));
                byte = static_cast<char>(byte ^ 0x40);
                file.write(at, std::string_view(&byte, 1));
            },
            damaged);
    }
    spoil(
        "another run's",
        [&] {
            ResultOptions o = options();
            o.out = folder_ / "other.h5";
            o.fingerprint["k"] = int64_t{7};
            ResultWriter other(o);
            other.add(make_generation(2, 9, 2));
            other.commit();
            fs::copy_file(folder_ / "other.h5.parts/part-0-000000.h5", part(1),
                          fs::copy_options::overwrite_existing);
            fs::remove_all(folder_ / "other.h5.parts");
        },
        "another run");
}

// The folder of the prompt files may change between starts; what is in them is in the fingerprint.
TEST_F(ResumeTest, TakesUpRecordsOfSeveralFilesAndSamples) {
    const auto of = [](int32_t source, int64_t index, int32_t sample) {
        Generation g = make_generation(index, 2 + sample, 2);
        g.source = source;
        g.sample = sample;
        g.chosen_logprobs.assign(g.tokens.size(), -0.5f);
        g.top_ids.assign(g.tokens.size(), 7);
        g.top_logprobs.assign(g.tokens.size(), -0.25f);
        return g;
    };
    ResultOptions o = options();
    o.records.clear();
    for (int32_t source = 0; source < 2; ++source)
        for (int64_t index = 0; index < 2; ++index)
            for (int32_t sample = 0; sample < 2; ++sample)
                o.records.push_back({source, index, sample});
    o.layout.logprobs = 2;
    o.layout.sources = {"a.h5", "b.h5"};
    {
        ResultWriter writer(o);
        writer.add(of(1, 0, 1));
        writer.add(of(0, 1, 0));
        writer.commit();
    }
    o.layout.sources = {"elsewhere/a.h5", "elsewhere/b.h5"};
    ResultWriter writer(o);
    EXPECT_TRUE(writer.notices().empty());
    EXPECT_EQ(writer.remaining(), 6);
    EXPECT_TRUE(writer.is_done({1, 0, 1}));
    for (const RecordKey& key : o.records)
        if (!writer.is_done(key)) writer.add(of(key.source, key.prompt_index, key.sample));
    EXPECT_EQ(writer.finish({}).records, 8);
    const GenerationReader reader(out_, schema::kGenerations);
    EXPECT_EQ(reader.layout().sources, o.layout.sources);
    EXPECT_EQ(reader.keys(0, 8), o.records);
    EXPECT_EQ(reader.read(5, 1)[0].tokens.size(), 3u);
    EXPECT_EQ(reader.read(5, 1)[0].chosen_logprobs[0], -0.5f);
}

TEST_F(ResumeTest, ANewerPartIsAnError) {
    start({{0}});
    {
        h5::File file = h5::File::open_write(part(0));
        file.set_attribute("quadrille_format", int64_t{2});
        file.close();
    }
    seal_file(part(0));
    expect_error(ErrorKind::input, {"part-0-000000.h5", "use a newer version"}, [&] { start({}); });
    EXPECT_TRUE(fs::exists(part(0)));
    {
        h5::File file = h5::File::open_write(parts() / "run.h5");
        file.set_attribute("quadrille_format", int64_t{2});
        file.close();
    }
    seal_file(parts() / "run.h5");
    expect_error(ErrorKind::input, {"run.h5", "use a newer version"}, [&] { start({}); });
}

TEST_F(ResumeTest, CommitsNothingThatMayNotBe) {
    bool allowed = true;
    ResultOptions o = options(2);
    o.before_commit = [&] {
        if (!allowed) throw Error(ErrorKind::comm, "the launcher is gone");
    };
    ResultWriter writer(o);
    writer.add(make_generation(0, 3, 2));
    writer.commit();
    writer.add(make_generation(1, 4, 2));
    allowed = false;
    expect_error(ErrorKind::comm, {"gone"}, [&] { writer.commit(); });
    EXPECT_EQ(list_parts(parts()).size(), 1u);
    allowed = true;
    writer.commit();
    allowed = false;
    expect_error(ErrorKind::comm, {"gone"}, [&] { writer.finish({}); });
    EXPECT_FALSE(fs::exists(out_));
    allowed = true;
    writer.finish({});
    expect_whole(2);
}

// Groups of ranks have locks, counts and parts of their own; the run's leader makes one result.
TEST_F(ResumeTest, MakesOneResultOfSeveralGroups) {
    GroupParts parts_of_other;
    {
        ResultWriter writer(options());
        RunLock lock(parts(), Locking::required, 0ms, 1);
        GroupWriter other({.folder = parts(),
                           .group = 1,
                           .layout = options().layout,
                           .run = run_name(options().fingerprint),
                           .ids = {},
                           .before_commit = {}},
                          lock);
        for (const int64_t i : {1, 4}) other.add(make_generation(i, 3 + i, 2));
        other.commit();
        other.add(make_generation(2, 5, 2));  // held back, and lost
        writer.add(make_generation(0, 3, 2));
        writer.commit();
    }
    // Another number of groups, and the first of them does nothing.
    {
        ResultWriter writer(options());
        EXPECT_EQ(writer.restarts(), 1);
        EXPECT_EQ(writer.computed(), 4);
        EXPECT_EQ(writer.remaining(), 3);
        RunLock lock(parts(), Locking::required, 0ms, 2);
        GroupWriter other({.folder = parts(),
                           .group = 2,
                           .layout = options().layout,
                           .run = run_name(options().fingerprint),
                           .ids = {},
                           .before_commit = {}},
                          lock);
        other.add(make_generation(2, 5, 2));
        other.commit();
        EXPECT_EQ(other.parts().first, 0);
        EXPECT_EQ(other.parts().end, 1);
        EXPECT_EQ(other.computed(), 1);
        writer.add_group(other.parts(), other.computed());
        EXPECT_EQ(writer.remaining(), 2);
        EXPECT_EQ(writer.computed(), 5);
    }
    ResultWriter writer(options());
    EXPECT_EQ(writer.restarts(), 2);  // a start in which only another group did something is one
    EXPECT_EQ(writer.computed(), 5);
    complete(writer);
    EXPECT_EQ(writer.computed(), 7);
    expect_whole();
    EXPECT_FALSE(fs::exists(parts()));
}

// A part that a group says it has committed, but that is nowhere.
TEST_F(ResumeTest, NamesWhatAGroupHasLost) {
    ResultWriter writer(options(2));
    writer.add(make_generation(0, 3, 2));
    writer.add_group({.group = 1, .first = 3, .end = 4}, 1);
    expect_error(ErrorKind::io, {"part-1-000003.h5"}, [&] { writer.finish({}); });
    EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ResumeTest, WaitsForTheGroupsOfAnEarlierStart) {
    start({{0}});
    const RunLock other(parts(), Locking::required, 0ms, 1);
    const auto expect_turned_away = [&](int group) {
        expect_error(
            ErrorKind::usage,
            {"generations.h5.parts is in use by process " + std::to_string(::getpid()) + " on"},
            [&] { RunLock(parts(), Locking::required, 0ms, group); });
    };
    expect_turned_away(1);
    { const RunLock apart(parts(), Locking::required, 0ms, 2); }
    expect_error(ErrorKind::usage, {"generations.h5.parts is in use by process"},
                 [&] { RunLock::settle_groups(parts(), Locking::required, 100ms); });
    EXPECT_EQ(RunLock::settle_groups(parts(), Locking::off, 0ms), 0);
    fs::remove(part(0));
    expect_error(ErrorKind::usage, {"is in use by process"}, [&] { ResultWriter{options()}; });
    EXPECT_TRUE(fs::exists(parts() / "lock-1"));  // the folder is still the other's
}

TEST_F(ResumeTest, NamesWhatIsGone) {
    ResultWriter writer(options(2));
    writer.add(make_generation(0, 3, 2));
    writer.commit();
    writer.add(make_generation(1, 4, 2));
    writer.commit();
    fs::remove(part(0));
    expect_error(ErrorKind::io, {"generations.h5.parts", "record 0 is gone"},
                 [&] { writer.finish({}); });
    fs::remove_all(parts());
    expect_error(ErrorKind::io, {"generations.h5.parts"}, [&] { writer.finish({}); });
}

}  // namespace
}  // namespace quadrille
