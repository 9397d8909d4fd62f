// SPDX-License-Identifier: Apache-2.0
// The records of a run: which prompts of which files, in which order, with which seeds and options.
#include "jobs/prompts/record_source.h"

#include "io/prompts/prompt_writer.h"
#include "kernels/philox.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace quadrille::test {
namespace {

using Change = std::function<void(int64_t index, PromptRecord& record)>;

class RecordSourceTest : public testing::Test {
  protected:
    // `count` records of tokens [index, 5]; a seed column where `change` sets one.
    std::string make(const std::string& name, int64_t count, const Change& change = {}) {
        std::vector<PromptRecord> records;
        PromptColumns columns;
        columns.text = false;
        for (int64_t index = 0; index < count; ++index) {
            PromptRecord record;
            record.prompt = std::vector<int32_t>{static_cast<int32_t>(index), 5};
            if (change) change(index, record);
            columns.note(record);
            records.push_back(record);
        }
        PromptWriter writer(folder_ / name, columns);
        for (PromptRecord& record : records) writer.add(std::move(record));
        writer.finish();
        options_.prompts.push_back((folder_ / name).string());
        return options_.prompts.back();
    }
    RecordSource open() const {
        return RecordSource(options_, options_.prompts, "MODEL", 100, nullptr);
    }
    // "source:index:sample …"
    static std::string list(const std::vector<Prompt>& prompts) {
        std::string text;
        for (const Prompt& prompt : prompts) {
            EXPECT_EQ(prompt.tokens.front(), prompt.index);
            text += std::to_string(prompt.source) + ":" + std::to_string(prompt.index) + ":" +
                    std::to_string(prompt.sample) + " ";
        }
        return text;
    }
    static size_t place(const char* name) {
        for (size_t i = 0; i < options::kInts.size(); ++i) {
            if (std::string(options::kInts[i].name) == name) return i;
        }
        ADD_FAILURE() << name;
        return 0;
    }

    TempFolder folder_;
    PromptSourceOptions options_;
};

TEST_F(RecordSourceTest, ListsFilesPromptsAndSamplesInOrder) {
    make("a.h5", 2);
    make("b.h5", 3);
    EXPECT_TRUE(open().has_origin());
    EXPECT_EQ(list(open().read(0, 100)), "0:0:0 0:1:0 1:0:0 1:1:0 1:2:0 ");
    options_.record.samples = 2;
    EXPECT_EQ(list(open().read(1, 4)), "0:0:1 0:1:0 0:1:1 1:0:0 ");
    EXPECT_EQ(list(open().read(9, 4)), "1:2:1 ");
    EXPECT_EQ(list(open().read(10, 4)), "");
    EXPECT_EQ(open().record_count(), 10);
    const std::vector<RecordKey> keys = open().keys();
    EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
    EXPECT_EQ(open().names(), options_.prompts);
}

TEST_F(RecordSourceTest, LimitAndShardsCountPromptsOverAllFiles) {
    make("a.h5", 4);
    make("b.h5", 4);
    options_.limit = 6;
    EXPECT_EQ(list(open().read(0, 100)), "0:0:0 0:1:0 0:2:0 0:3:0 1:0:0 1:1:0 ");
    options_.record.samples = 2;
    options_.shard = {.index = 1, .count = 3};
    EXPECT_EQ(list(open().read(0, 100)), "0:1:0 0:1:1 1:0:0 1:0:1 ");
    options_.shard = {.index = 7, .count = 8};
    EXPECT_EQ(open().record_count(), 0);
    options_.limit = 0;
    EXPECT_EQ(list(open().read(0, 100)), "1:3:0 1:3:1 ");
}

TEST_F(RecordSourceTest, ShardsTogetherAreTheWhole) {
    make("a.h5", 7);
    make("b.h5", 6);
    options_.record.samples = 3;
    const std::vector<RecordKey> whole = open().keys();
    std::vector<RecordKey> parts;
    for (int64_t i = 0; i < 4; ++i) {
        options_.shard = {.index = i, .count = 4};
        const auto part = open().keys();
        parts.insert(parts.end(), part.begin(), part.end());
    }
    std::sort(parts.begin(), parts.end());
    EXPECT_EQ(parts, whole);
}

TEST_F(RecordSourceTest, SeedsOfAColumnHoldForTheFirstSample) {
    make("a.h5", 3, [](int64_t index, PromptRecord& record) {
        if (index == 1) record.ints[place("seed")] = 42;
    });
    options_.record.samples = 3;
    const std::vector<Prompt> prompts = open().read(0, 100);
    EXPECT_EQ(prompts[0].options.seed, -1);  // the engine's: from the run's
    EXPECT_EQ(prompts[3].options.seed, 42);
    EXPECT_EQ(prompts[4].options.seed, record_seed(42, 1, 0, 1));
    EXPECT_EQ(prompts[5].options.seed, record_seed(42, 1, 0, 2));
}

TEST_F(RecordSourceTest, RecordsAskForTheirOwnNumberOfSamples) {
    make("a.h5", 3, [](int64_t index, PromptRecord& record) {
        if (index == 1) record.ints[place("n")] = 3;
    });
    EXPECT_TRUE(open().has_origin());
    EXPECT_EQ(list(open().read(0, 100)), "0:0:0 0:1:0 0:1:1 0:1:2 0:2:0 ");
    options_.record.samples = 2;
    EXPECT_EQ(list(open().read(0, 100)), "0:0:0 0:0:1 0:1:0 0:1:1 0:1:2 0:2:0 0:2:1 ");
}

TEST_F(RecordSourceTest, SaysThatSamplesAtTemperatureZeroAreEqual) {
    make("a.h5", 3, [](int64_t index, PromptRecord& record) {
        if (index == 1) record.floats[options::kTemperature] = 0.5;
    });
    EXPECT_EQ(open().notices(), std::vector<std::string>{});
    options_.record.samples = 2;
    ASSERT_EQ(open().notices().size(), 1u);
    EXPECT_NE(open().notices()[0].find("2 of 3 prompts"), std::string::npos);
    options_.record.temperature = 1.0;
    EXPECT_EQ(open().notices(), std::vector<std::string>{});
}

TEST_F(RecordSourceTest, RowsKnowWhichAreCompletions) {
    make("a.h5", 2);
    EXPECT_EQ(open().completions(), std::vector<bool>{});
    make("b.h5", 2, [](int64_t index, PromptRecord& record) { record.completion = index == 1; });
    options_.record.samples = 2;
    EXPECT_EQ(open().completions(),
              (std::vector<bool>{false, false, false, false, false, false, true, true}));
}

TEST_F(RecordSourceTest, ARecordMayBringItsError) {
    make("a.h5", 2, [](int64_t index, PromptRecord& record) {
        if (index == 1) record.error = "in.jsonl:2: body.logit_bias: expected {}";
    });
    const std::vector<Prompt> prompts = open().read(0, 100);
    EXPECT_EQ(prompts[0].error, "");
    EXPECT_EQ(prompts[1].error, "in.jsonl:2: body.logit_bias: expected {}");
}

TEST_F(RecordSourceTest, ASeedAttributeIsTheRunsSeed) {
    const std::string path = make("a.h5", 2);
    h5::File file = h5::File::open_write(path);
    file.group("prompts").set_attribute("seed", int64_t{7});
    file.close();
    const std::vector<Prompt> prompts = open().read(0, 2);
    EXPECT_EQ(prompts[0].options.seed, record_seed(7, 0, 0, 0));
    EXPECT_EQ(prompts[1].options.seed, record_seed(7, 1, 0, 0));
}

TEST_F(RecordSourceTest, KnowsTheWidestLogprobsAndStopStrings) {
    make("a.h5", 2);
    EXPECT_EQ(open().largest_logprobs(), -1);
    EXPECT_FALSE(open().has_stop_text());
    make("b.h5", 3, [](int64_t index, PromptRecord& record) {
        if (index == 2) record.ints[place("logprobs")] = 5;
    });
    EXPECT_EQ(open().largest_logprobs(), 5);
    options_.record.logprobs = 8;  // the flag, for records without a value
    EXPECT_EQ(open().largest_logprobs(), 8);
    make("c.h5", 1, [](int64_t, PromptRecord& record) { record.stop_text = {"end"}; });
    expect_error(ErrorKind::input, {"c.h5", "stop_text", "MODEL has no tokenizer.json"},
                 [&] { open(); });
}

TEST_F(RecordSourceTest, NamesTheFileOfARecordError) {
    make("a.h5", 2);
    make("b.h5", 2, [](int64_t index, PromptRecord& record) {
        if (index == 1) record.prompt = std::vector<int32_t>{};
    });
    EXPECT_NE(open().first_error().find("b.h5: record 1: "), std::string::npos);
    options_.limit = 3;
    EXPECT_EQ(open().first_error(), "");
}

}  // namespace
}  // namespace quadrille::test
