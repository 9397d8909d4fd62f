// SPDX-License-Identifier: Apache-2.0
#include "io/prompts/prompt_reader.h"

#include "io/h5/schema.h"
#include "tests/support/expect_error.h"
#include "tests/support/peak_memory.h"
#include "tests/support/prompts_file.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

using test::expect_error;
using Maker = test::PromptsMaker;
using PromptReaderTest = test::PromptsFileTest;

TEST_F(PromptReaderTest, ReadsTokensInSlices) {
    const PromptReader reader = open([](Maker& m) { m.tokens(); });
    ASSERT_EQ(reader.record_count(), 3);
    EXPECT_FALSE(reader.is_text());
    EXPECT_EQ(reader.longest_prompt(), 3);
    EXPECT_EQ(reader.largest_total(), 3 + 256);
    EXPECT_TRUE(reader.notices().empty());
    EXPECT_TRUE(std::holds_alternative<std::monostate>(reader.ids()));
    const auto all = reader.read(0, 3);
    EXPECT_EQ(all[0].tokens, (std::vector<int32_t>{5, 6}));
    EXPECT_EQ(all[1].tokens, (std::vector<int32_t>{7}));
    EXPECT_EQ(all[2].tokens, (std::vector<int32_t>{8, 9, 10}));
    const auto last = reader.read(2, 1);
    EXPECT_EQ(last[0].index, 2);
    EXPECT_EQ(last[0].tokens, all[2].tokens);
    EXPECT_EQ(last[0].error, "");
    EXPECT_TRUE(reader.read(3, 0).empty());
}

TEST_F(PromptReaderTest, ReadsText) {
    const PromptReader reader = open([](Maker& m) {
        m.strings("text", {"one", "", "gr\xC3\xBCn", "br\xC3(en"});
    });
    EXPECT_TRUE(reader.is_text());
    EXPECT_EQ(reader.record_count(), 4);
    const auto prompts = reader.read(0, 4);
    EXPECT_EQ(prompts[0].text, "one");
    EXPECT_TRUE(prompts[0].tokens.empty());
    EXPECT_EQ(errors(prompts), (std::vector<std::string>{"", "empty prompt", "",
                                                         "text is not UTF-8: broken at byte 2"}));
}

TEST_F(PromptReaderTest, ReadsNoRecords) {
    const PromptReader tokens = open([](Maker& m) {
        m.ints("tokens", {}).ints("offsets", {0}).ints("top_k", {}).strings("id", {});
    });
    EXPECT_EQ(tokens.record_count(), 0);
    EXPECT_TRUE(tokens.read(0, 0).empty());
    EXPECT_EQ(open([](Maker& m) { m.strings("text", {}); }).record_count(), 0);
}

TEST_F(PromptReaderTest, RejectsFilesWithoutExactlyOneKindOfPrompt) {
    rejects({"both tokens and text"}, [](Maker& m) { m.tokens().strings("text", {"a"}); });
    rejects({"neither tokens"}, [](Maker& m) { m.ints("id", {1}); });
    rejects({"/prompts/offsets", "no such dataset"}, [](Maker& m) { m.ints("tokens", {1}); });
    rejects({"neither"}, [](Maker& m) { m.ints("offsets", {0}); });
    rejects({"offsets without tokens"}, [](Maker& m) {
        m.strings("text", {"a"}).ints("offsets", {0, 1});
    });
}

TEST_F(PromptReaderTest, RejectsOffsetsThatDoNotFit) {
    const auto with = [](std::vector<int64_t> offsets) {
        return [offsets](Maker& m) { m.ints("tokens", {1, 2, 3}).ints("offsets", offsets); };
    };
    rejects({"/prompts/offsets", "empty"}, with({}));
    rejects({"/prompts/offsets[0]", "expected 0, found 1"}, with({1, 3}));
    rejects({"/prompts/offsets[2]", "falls from 2 to 1"}, with({0, 2, 1, 3}));
    rejects({"/prompts/offsets[1]", "falls from 0 to -1"}, with({0, -1, 3}));
    rejects({"/prompts/offsets", "ends at 2", "3 values"}, with({0, 2}));
    rejects({"/prompts/offsets", "ends at 4", "3 values"}, with({0, 4}));
    rejects({"/prompts/offsets", "float64 [2]"}, [](Maker& m) {
        m.ints("tokens", {1}).floats("offsets", {0, 1});
    });
}

TEST_F(PromptReaderTest, RejectsWrongTypes) {
    rejects({"/prompts/tokens", "integers", "float64 [1]"}, [](Maker& m) {
        m.floats("tokens", {1}).ints("offsets", {0, 1});
    });
    rejects({"/prompts/tokens", "integers [tokens]", "[2, 2]"}, [](Maker& m) {
        m.group().create_dataset("tokens", h5::Element::i32, {2, 2});
        m.ints("offsets", {0, 2});
    });
    rejects({"/prompts/tokens", "expected a dataset"},
            [](Maker& m) { m.group().create_group("tokens"); });
    rejects({"/prompts/text", "strings", "int64 [1]"}, [](Maker& m) { m.ints("text", {1}); });
    for (const char* name : {"max_new_tokens", "top_k", "seed", "logprobs", "ignore_eos"}) {
        rejects({std::string("/prompts/") + name, "integers", "float64 [3]"}, [&](Maker& m) {
            m.tokens().floats(name, {1, 1, 1});
        });
        rejects({std::string("/prompts/") + name, "integers", "string [3]"}, [&](Maker& m) {
            m.tokens().strings(name, {"1", "1", "1"});
        });
    }
    for (const char* name : {"temperature", "top_p", "min_p", "repetition_penalty"})
        rejects({std::string("/prompts/") + name, "floating point", "int64 [3]"}, [&](Maker& m) {
            m.tokens().ints(name, {1, 1, 1});
        });
    rejects({"/prompts/id", "integers or strings", "float64"}, [](Maker& m) {
        m.tokens().floats("id", {1, 2, 3});
    });
    rejects({"/prompts/stop_text", "list of strings", "int64"},
            [](Maker& m) { m.tokens().ints("stop_text", {1}); });
    rejects({"/prompts/stop_tokens", "list of integers", "string"},
            [](Maker& m) { m.tokens().strings("stop_tokens", {"1"}); });
}

TEST_F(PromptReaderTest, RejectsDuplicateIds) {
    rejects({"/prompts/id", "records 0 and 2", "id 4"}, [](Maker& m) {
        m.tokens().ints("id", {4, 5, 4});
    });
    rejects({"/prompts/id", "records 1 and 2", "id same"}, [](Maker& m) {
        m.tokens().strings("id", {"other", "same", "same"});
    });
    rejects({"/prompts/id[1]", "UTF-8"}, [](Maker& m) {
        m.tokens().strings("id", {"a", "\xFF", "b"});
    });
    const PromptReader reader = open([](Maker& m) { m.tokens().strings("id", {"x", "", "z"}); });
    EXPECT_EQ(std::get<std::vector<std::string>>(reader.ids()),
              (std::vector<std::string>{"x", "", "z"}));
    const PromptReader numbers = open([](Maker& m) { m.tokens().ints("id", {-3, 5, 0}); });
    EXPECT_EQ(std::get<std::vector<int64_t>>(numbers.ids()), (std::vector<int64_t>{-3, 5, 0}));
}

TEST_F(PromptReaderTest, ReportsBadTokensPerRecord) {
    const auto path = make([](Maker& m) {
        m.ints("tokens", {5, -1, 768, 767, 1, 2, 3, 4, int64_t{1} << 40})
            .ints("offsets", {0, 1, 2, 3, 4, 4, 8, 9});
    });
    const PromptReader reader(path, {});
    const auto prompts = reader.read(0, 7, {.vocab_size = 768, .context = 4});
    EXPECT_EQ(errors(prompts), (std::vector<std::string>{
                                   "", "token -1 at position 0 is outside 0 to 767",
                                   "token 768 at position 0 is outside 0 to 767", "",
                                   "empty prompt", "a prompt of 4 tokens fills the context of 4",
                                   "token 1099511627776 at position 0 is outside 0 to 767"}));
    EXPECT_EQ(prompts[3].tokens, (std::vector<int32_t>{767}));
    EXPECT_TRUE(prompts[2].tokens.empty());
    // Without limits only what no vocabulary can hold is refused.
    const auto loose = reader.read(0, 7);
    EXPECT_EQ(loose[2].error, "");
    EXPECT_EQ(loose[5].tokens.size(), 4u);
    EXPECT_NE(loose[6].error, "");
}

TEST_F(PromptReaderTest, NotesUnknownNamesOnce) {
    const PromptReader reader = open([](Maker& m) {
        m.tokens().ints("temprature", {1}).attribute("author", "me").attribute("top_k", int64_t{3});
        m.file().create_group("notes");
    });
    ASSERT_EQ(reader.notices().size(), 1u);
    for (const char* part : {"/notes", "/prompts/temprature", "attribute author"})
        EXPECT_NE(reader.notices()[0].find(part), std::string::npos) << reader.notices()[0];
    EXPECT_EQ(reader.notices()[0].find("top_k"), std::string::npos);
}

TEST_F(PromptReaderTest, ChecksKindAndFormat) {
    rejects({"quadrille_format is 2", "up to 1"},
            [](Maker& m) { m.tokens().file().set_attribute("quadrille_format", int64_t{2}); });
    rejects({"quadrille_format", "integer", "one"},
            [](Maker& m) { m.tokens().file().set_attribute("quadrille_format", "one"); });
    rejects({"kind 'prompts'", "'generations'"},
            [](Maker& m) { m.tokens().file().set_attribute("kind", "generations"); });
    rejects({"kind", "a string", "3"},
            [](Maker& m) { m.tokens().file().set_attribute("kind", int64_t{3}); });
    const auto path = folder_ / "plain.h5";
    {
        h5::File plain = h5::File::create(path);
        h5::Group prompts = plain.create_group("prompts");
        prompts.create_dataset("text", h5::Element::string, {1})
            .write_strings(0, std::vector<std::string>{"hello"});
    }
    const PromptReader reader(path, {});
    ASSERT_EQ(reader.notices().size(), 1u);
    EXPECT_NE(reader.notices()[0].find("read as format 1"), std::string::npos);
    EXPECT_EQ(reader.read(0, 1)[0].text, "hello");
    h5::File::create(folder_ / "other.h5").create_group("data");
    expect_error(ErrorKind::input, {"other.h5", "no /prompts"},
                 [&] { PromptReader(folder_ / "other.h5", {}); });
}

TEST_F(PromptReaderTest, DigestNamesTheContent) {
    const auto digest = [&](const Make& fill) { return open(fill).digest(); };
    const std::string base = digest([](Maker& m) { m.tokens(); });
    EXPECT_EQ(base, digest([](Maker& m) { m.tokens().ints("unknown", {1}); }));
    EXPECT_NE(base, digest([](Maker& m) { m.tokens().ints("top_k", {1, 1, 1}); }));
    EXPECT_NE(base, digest([](Maker& m) { m.tokens().attribute("top_k", int64_t{1}); }));
    EXPECT_NE(base, digest([](Maker& m) {
                  m.ints("tokens", {5, 6, 7, 8, 9, 11}).ints("offsets", {0, 2, 3, 6});
              }));
    EXPECT_NE(base, digest([](Maker& m) {
                  m.ints("tokens", {5, 6, 7, 8, 9, 10}).ints("offsets", {0, 1, 3, 6});
              }));
}

TEST_F(PromptReaderTest, ReadsLargeFilesInBoundedMemory) {
    constexpr int64_t kRecords = 1'000'000;
    constexpr int64_t kLength = 60;
    const auto path = folder_ / "large.h5";
    {
        h5::File file = h5::File::create(path);
        schema::stamp(file, schema::kPrompts);
        h5::Group prompts = file.create_group("prompts");
        h5::Dataset tokens = prompts.create_extendable("tokens", h5::Element::i32, {}, 65536);
        std::vector<int32_t> block(1'000'000);
        for (int64_t at = 0; at < kRecords * kLength; at += std::ssize(block)) {
            for (size_t i = 0; i < block.size(); ++i)
                block[i] = static_cast<int32_t>((at + static_cast<int64_t>(i)) % 151'000);
            tokens.append<int32_t>(block);
        }
        std::vector<int64_t> offsets(kRecords + 1);
        for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i) * kLength;
        prompts.create_dataset("offsets", h5::Element::i64, {kRecords + 1})
            .write<int64_t>(0, offsets);
        file.flush();
    }
    const int64_t before = test::peak_memory_kib();
    const PromptReader reader(path, {});
    int64_t tokens = 0;
    for (int64_t first = 0; first < kRecords; first += 4096)
        for (const Prompt& prompt : reader.read(first, std::min<int64_t>(4096, kRecords - first))) {
            ASSERT_EQ(prompt.tokens.front(), prompt.index * kLength % 151'000);
            tokens += std::ssize(prompt.tokens);
        }
    EXPECT_EQ(tokens, kRecords * kLength);
    // All tokens would be 240 MB as int32; the offsets are 8 MB.
    EXPECT_LT(test::peak_memory_kib() - before, 40 * 1024);
}

}  // namespace
}  // namespace quadrille
