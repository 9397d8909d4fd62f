// SPDX-License-Identifier: Apache-2.0
// Every list that this program writes, at 100,000 entries: no limit of the file format is met at
// the end of a run.
#include "io/h5/schema.h"
#include "io/prompts/prompt_reader.h"
#include "io/prompts/prompt_writer.h"
#include "io/results/generation_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/results_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quadrille {
namespace {

using LongListsTest = test::ResultsFolderTest;

constexpr int64_t kEntries = 100'000;

std::vector<std::string> names(const std::string& stem) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < kEntries; ++i) out.push_back(fmt::format("{}/{:06}.jsonl", stem, i));
    return out;
}

TEST_F(LongListsTest, OfPromptFilesSamplesRanksAndTokens) {
    const auto tokens = static_cast<size_t>(kEntries);
    ResultOptions o = options(0, 0);
    const Ids ids = std::vector<std::string>{std::string(kEntries, 'i')};
    o.ids = {&ids};
    o.records = {{0, 0, 0}};
    o.layout.origin = true;
    o.layout.sources = names("prompts");
    o.layout.logprobs = 2;
    o.fingerprint["command_line"] = fmt::format("{}", fmt::join(o.layout.sources, " "));
    {
        ResultWriter writer(o);
        Generation g = test::make_generation(0, kEntries, 0);
        g.text = std::string(tokens, 't');
        g.error = std::string(tokens, 'e');
        g.chosen_logprobs.assign(tokens, -0.5F);
        g.top_ids.assign(2 * tokens, 7);
        g.top_logprobs.assign(2 * tokens, -0.5F);
        writer.add(std::move(g));
        writer.finish({{"hosts", names("host")},
                       {"devices", names("device")},
                       {"libraries", names("library")},
                       {"command_line", std::string(10'000'000, 'c')}});
    }
    const GenerationReader reader(out_, schema::kGenerations);
    EXPECT_EQ(reader.layout().sources, o.layout.sources);
    const Generation back = reader.read(0, 1)[0];
    EXPECT_EQ(back.tokens.size(), tokens);
    EXPECT_EQ(std::get<std::string>(back.id).size(), tokens);
    EXPECT_EQ(back.top_ids.size(), 2 * tokens);
    const h5::Group provenance = reader.file().group("provenance");
    EXPECT_EQ(provenance.dataset("hosts").read_strings(kEntries - 1, 1),
              std::vector<std::string>{"host/099999.jsonl"});
    EXPECT_EQ(provenance.dataset("devices").rows(), kEntries);
}

TEST_F(LongListsTest, OfRecordsAndTheirStops) {
    const auto path = folder_ / "prompts.h5";
    PromptColumns columns;
    columns.text = false;
    columns.id = PromptColumns::Id::strings;
    columns.options = {options::kStopTokens, options::kStopText};
    PromptWriter writer(path, columns);
    for (int64_t i = 0; i < kEntries; ++i) {
        PromptRecord record;
        record.prompt = std::vector<int32_t>{5};
        record.id = i;
        if (i == 0) {
            record.prompt = std::vector<int32_t>(kEntries, 5);
            record.stop_tokens.assign(kEntries, 9);
            record.stop_text = names("stop");
        }
        writer.add(std::move(record));
    }
    writer.finish();
    const PromptReader reader(path, {});
    ASSERT_EQ(reader.record_count(), kEntries);
    EXPECT_EQ(reader.prompt_tokens(0), kEntries);
    const RecordOptions first = reader.read(0, 1)[0].options;
    EXPECT_EQ(std::ssize(first.stop_tokens), kEntries);
    EXPECT_EQ(first.stop_text, names("stop"));
}

TEST_F(LongListsTest, AreReadFromTheAttributeOfOlderFiles) {
    ResultOptions o = options(0);
    o.records = {{0, 0, 0}, {1, 0, 0}};
    const std::vector<std::string> sources = {"a.h5", "b.h5"};
    {
        ResultWriter writer(o);
        for (const RecordKey& key : o.records) {
            Generation g = test::make_generation(0, 2, 2);
            g.source = key.source;
            writer.add(std::move(g));
        }
        writer.finish({});
    }
    {
        h5::File file = h5::File::open_write(out_);
        EXPECT_FALSE(file.has("generations/source_names"));
        file.dataset("generations/source").set_attribute("names", sources);
    }
    EXPECT_EQ(GenerationReader(out_, schema::kGenerations).layout().sources, sources);
}

TEST_F(LongListsTest, AreRefusedAsAttributesByName) {
    h5::File file = h5::File::create(folder_ / "x.h5");
    test::expect_error(ErrorKind::internal, {"x.h5, attribute names", "100000", "dataset"},
                       [&] { file.set_attribute("names", names("prompts")); });
}

}  // namespace
}  // namespace quadrille
