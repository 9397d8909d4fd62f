// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/pack.h"

#include "io/prompts/option_table.h"
#include "io/text/tokenizer.h"
#include "kernels/error.h"
#include "tests/jobs/files/packing.h"
#include "tests/support/expect_error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

namespace quadrille {
namespace {

using test::expect_error;
using test::Pack;

TEST_F(Pack, WritesATextFileLineByLine) {
    const auto prompts = packed("in.txt", "first prompt\n\n  second, caf\xc3\xa9 \r\nlast");
    ASSERT_EQ(prompts.size(), 3u);
    EXPECT_TRUE(reader_->is_text());
    EXPECT_EQ(prompts[0].text, "first prompt");
    EXPECT_EQ(prompts[1].text, "  second, caf\xc3\xa9 ");
    EXPECT_EQ(prompts[2].text, "last");
    for (const Prompt& prompt : prompts) EXPECT_EQ(prompt.error, "");
    ASSERT_EQ(summary_.notices.size(), 1u);
    EXPECT_NE(summary_.notices[0].find("1 blank lines"), std::string::npos);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(reader_->ids()));
}

TEST_F(Pack, AFileOfFewRecordsIsSmall) {
    std::string text;
    for (int i = 0; i < 12; ++i)
        text += R"({"text": "some words", "top_k": 3})"
                "\n";
    packed("in.jsonl", text);
    EXPECT_LT(std::filesystem::file_size(reader_->path()), 30000u);
    text.clear();
    for (int i = 0; i < 12; ++i)
        text += R"({"tokens": [1, 2, 3], "stop_tokens": [4]})"
                "\n";
    packed("in.jsonl", text);
    EXPECT_LT(std::filesystem::file_size(reader_->path()), 30000u);
}

TEST_F(Pack, WritesTokensWithEveryOption) {
    const auto prompts = packed(
        "in.jsonl",
        R"({"id": "a", "tokens": [5, 6, 7], "max_new_tokens": 12, "temperature": 0.5, "top_p": 0.9, )"
        R"("top_k": 40, "min_p": 0.1, "repetition_penalty": 1.5, "seed": 9007199254740993, )"
        R"("logprobs": 3, "ignore_eos": true, "stop_tokens": [1, 2], "stop_text": "END"})"
        "\n"
        R"({"id": 17, "tokens": [8], "max_new_tokens": null, "top_k": -1})"
        "\n"
        R"({"tokens": [0, 2147483647], "id": "c", "stop_tokens": 4, "stop_text": ["x", "yé"]})");
    ASSERT_EQ(prompts.size(), 3u);
    EXPECT_FALSE(reader_->is_text());
    EXPECT_EQ(prompts[0].tokens, (std::vector<int32_t>{5, 6, 7}));
    EXPECT_EQ(prompts[1].tokens, (std::vector<int32_t>{8}));
    EXPECT_EQ(prompts[2].tokens, (std::vector<int32_t>{0, 2147483647}));
    const RecordOptions& set = prompts[0].options;
    EXPECT_EQ(set.max_new_tokens, 12);
    EXPECT_EQ(set.temperature, 0.5);
    EXPECT_EQ(set.top_p, 0.9);
    EXPECT_EQ(set.top_k, 40);
    EXPECT_EQ(set.min_p, 0.1);
    EXPECT_EQ(set.repetition_penalty, 1.5);
    EXPECT_EQ(set.seed, 9007199254740993);
    EXPECT_EQ(set.logprobs, 3);
    EXPECT_TRUE(set.ignore_eos);
    EXPECT_EQ(set.stop_tokens, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(set.stop_text, std::vector<std::string>{"END"});
    const RecordOptions usual;
    EXPECT_EQ(prompts[1].options.max_new_tokens, usual.max_new_tokens);
    EXPECT_EQ(prompts[1].options.temperature, usual.temperature);
    EXPECT_EQ(prompts[1].options.top_k, usual.top_k);
    EXPECT_EQ(prompts[1].options.seed, usual.seed);
    EXPECT_FALSE(prompts[1].options.ignore_eos);
    EXPECT_TRUE(prompts[1].options.stop_tokens.empty());
    EXPECT_EQ(prompts[2].options.stop_tokens, std::vector<int32_t>{4});
    EXPECT_EQ(prompts[2].options.stop_text, (std::vector<std::string>{"x", "y\xc3\xa9"}));
    EXPECT_EQ(std::get<std::vector<std::string>>(reader_->ids()),
              (std::vector<std::string>{"a", "17", "c"}));
}

TEST_F(Pack, WritesIntegerIdsAsIntegersAndOnlyColumnsThatAreUsed) {
    packed("in.jsonl", "{\"id\": 3, \"text\": \"a\"}\n{\"id\": -1, \"text\": \"b\"}\n");
    EXPECT_EQ(std::get<std::vector<int64_t>>(reader_->ids()), (std::vector<int64_t>{3, -1}));
    EXPECT_EQ(summary_.columns, std::vector<std::string>{"id"});
    const h5::File file = h5::File::open(folder_ / "out.h5");
    EXPECT_EQ(file.group("prompts").names(), (std::vector<std::string>{"id", "text"}));
}

TEST_F(Pack, JoinsInputsInOrderUpToTheLimit) {
    folder_.write("a.txt", "one\ntwo\n");
    folder_.write("b.jsonl", "{\"text\": \"three\"}\n{\"text\": \"four\"}\n{\"text\": 5}\n");
    PackOptions pack_options = options({"a.txt", "b.jsonl"});
    pack_options.limit = 4;
    summary_ = pack(pack_options);
    const auto prompts = read_back();
    ASSERT_EQ(prompts.size(), 4u);
    EXPECT_EQ(prompts[0].text, "one");
    EXPECT_EQ(prompts[3].text, "four");
}

TEST_F(Pack, FormatOverridesTheSuffix) {
    folder_.write("a.jsonl", "{\"text\": \"x\"}\n");
    PackOptions pack_options = options({"a.jsonl"});
    pack_options.format = "text";
    summary_ = pack(pack_options);
    EXPECT_EQ(read_back()[0].text, "{\"text\": \"x\"}");
}

TEST_F(Pack, NoRecordsMakeAnEmptyFile) {
    EXPECT_EQ(packed("in.txt", "\n\n").size(), 0u);
    EXPECT_TRUE(reader_->is_text());
}

TEST_F(Pack, ManyBatchesComeBackInOrder) {
    std::string content;
    for (int i = 0; i < 10'000; ++i) {
        content += "{\"tokens\": [" + std::to_string(i) + (i % 3 == 0 ? "" : ", 1") +
                   "], \"seed\": " + std::to_string(i) + "}\n";
    }
    const auto prompts = packed("in.jsonl", content);
    ASSERT_EQ(prompts.size(), 10'000u);
    for (int i = 0; i < 10'000; ++i) {
        const Prompt& prompt = prompts[static_cast<size_t>(i)];
        ASSERT_EQ(prompt.tokens.size(), i % 3 == 0 ? 1u : 2u);
        ASSERT_EQ(prompt.tokens[0], i);
        ASSERT_EQ(prompt.options.seed, i);
    }
}

TEST_F(Pack, MixedFormsNeedATokenizerAndBecomeTokens) {
    if (!text_supported()) GTEST_SKIP() << "built without ICU";
    folder_.write("in.jsonl", "{\"text\": \"Hello, world!\"}\n{\"tokens\": [5]}\n");
    PackOptions pack_options = options({"in.jsonl"});
    expect_error(ErrorKind::usage, {"--target", "in.jsonl:1 holds text", "in.jsonl:2 tokens"},
                 [&] { pack(pack_options); });
    pack_options.target = test::data("models/demo-full-4bpw").string();
    summary_ = pack(pack_options);
    const auto prompts = read_back();
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(prompts[0].tokens, make_tokenizer(pack_options.target)->encode("Hello, world!"));
    EXPECT_EQ(prompts[1].tokens, std::vector<int32_t>{5});
}

TEST_F(Pack, TellsOfKeysItDoesNotKnow) {
    packed("in.jsonl",
           "{\"text\": \"a\", \"max_tokens\": 5}\n{\"text\": \"b\", \"max_tokens\": 6}\n");
    ASSERT_EQ(summary_.notices.size(), 1u);
    EXPECT_NE(summary_.notices[0].find("max_tokens (2 lines)"), std::string::npos);
}

TEST_F(Pack, NamesFileLineAndField) {
    refused("{\"text\": \"a\"}\nnonsense\n", {"in.jsonl:2", "expected JSON"});
    refused("[1]", {"in.jsonl:1", "an object", "[1]"});
    refused("{}", {"in.jsonl:1", "text, tokens and messages", "none"});
    refused(R"({"text": "a", "tokens": [1]})", {"in.jsonl:1", "one of", "text, tokens"});
    failed(R"({"text": ""})", {"in.jsonl:1: text", "some text"});
    refused(R"({"text": 5})", {"in.jsonl:1: text", "a string", "5"});
    failed(R"({"text": "a\u0000b"})", {"in.jsonl:1: text", "NUL"});
    refused(R"({"text": "\ud800"})", {"in.jsonl:1", "JSON"});
    refused("{\"text\": \"\xff\"}", {"in.jsonl:1", "UTF-8"});
    failed(R"({"tokens": []})", {"in.jsonl:1: tokens", "at least one"});
    failed(R"({"tokens": [1, -1]})", {"in.jsonl:1: tokens[1]", "-1"});
    failed(R"({"tokens": [2147483648]})", {"in.jsonl:1: tokens[0]", "2147483648"});
    refused(R"({"tokens": [1.5]})", {"in.jsonl:1: tokens[0]", "1.5"});
    refused(R"({"text": "a", "id": 1.5})", {"in.jsonl:1: id", "integer or a string", "1.5"});
    refused(R"({"text": "a", "id": 18446744073709551615})", {"in.jsonl:1: id"});
    failed(R"({"text": "a", "max_new_tokens": -2})", {"in.jsonl:1: max_new_tokens", "0 to"});
    refused(R"({"text": "a", "max_new_tokens": "5"})", {"in.jsonl:1: max_new_tokens", "\"5\""});
    refused(R"({"text": "a", "max_new_tokens": true})", {"in.jsonl:1: max_new_tokens", "true"});
    failed(R"({"text": "a", "seed": 9223372036854775808})", {"in.jsonl:1: seed"});
    failed(R"({"text": "a", "logprobs": 257})", {"in.jsonl:1: logprobs", "0 to 256", "257"});
    failed(R"({"text": "a", "ignore_eos": 2})", {"in.jsonl:1: ignore_eos", "0 to 1", "2"});
    failed(R"({"text": "a", "temperature": -0.5})", {"in.jsonl:1: temperature", "-0.5"});
    refused(R"({"text": "a", "temperature": "hot"})", {"in.jsonl:1: temperature", "hot"});
    failed(R"({"text": "a", "top_p": 0})", {"in.jsonl:1: top_p", "above 0 to 1"});
    failed(R"({"text": "a", "min_p": 1.5})", {"in.jsonl:1: min_p", "1.5"});
    refused(R"({"text": "a", "stop_tokens": "x"})", {"in.jsonl:1: stop_tokens"});
    failed(R"({"text": "a", "stop_text": [""]})", {"in.jsonl:1: stop_text"});
    refused(R"({"text": "a", "stop_text": [1]})", {"in.jsonl:1: stop_text[0]", "a string"});
    refused("{\"text\": \"a\", \"id\": 7}\n\n{\"text\": \"a\", \"id\": \"7\"}",
            {"in.jsonl:3: id", "found 7 in record 0"});
    refused("{\"text\": \"a\", \"id\": 7}\n{\"text\": \"a\"}",
            {"in.jsonl:2: id", "every record", "in.jsonl:1"});
}

TEST_F(Pack, ChecksTypeAndRangeOfEveryOption) {
    const auto bad = [this](const std::string& name, const std::string& value,
                            const std::string& expected) {
        refused(fmt::format(R"({{"text": "a", "{}": {}}})", name, value),
                {"in.jsonl:1: " + name, expected, "found " + value});
    };
    const auto out_of_range = [this](const std::string& name, const std::string& value,
                                     const std::string& expected) {
        failed(fmt::format(R"({{"text": "a", "{}": {}}})", name, value),
               {"in.jsonl:1: " + name, expected, "found " + value});
    };
    for (const options::IntOption& option : options::kInts) {
        for (const char* value : {R"("1")", "1.5", "[1]", "{}"}) {
            bad(option.name, value, "an integer, " + option.range());
        }
        out_of_range(option.name, fmt::format("{}", option.low > 0 ? option.low - 1 : -2),
                     option.range());
        out_of_range(option.name, fmt::format("{}", static_cast<uint64_t>(option.high) + 1),
                     option.range());
    }
    for (const options::FloatOption& option : options::kFloats) {
        for (const char* value : {R"("1")", "true", "[1]", "{}"}) {
            bad(option.name, value, "a number, " + option.range());
        }
        out_of_range(option.name, "-0.5", option.range());
        if (!option.low_allowed) out_of_range(option.name, "0", option.range());
        if (option.high == 1.0) out_of_range(option.name, "1.5", option.range());
        refused(fmt::format(R"({{"text": "a", "{}": 1e999}})", option.name),
                {"in.jsonl:1", "1e999"});
    }
}

TEST_F(Pack, AppliesTheChatTemplate) {
    const auto prompts = packed(
        "in.jsonl",
        R"({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low", "seed": 3})"
        "\n"
        R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "b", "a": 1}], )"
        R"("chat_template_kwargs": {"enable_thinking": false}})");
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(summary_.notices, std::vector<std::string>{});
    EXPECT_EQ(prompts[0].text,
              "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>hi<|assistant|><think>");
    EXPECT_EQ(prompts[0].options.seed, 3);
    EXPECT_NE(prompts[1].text.find("\n{\"name\": \"b\", \"a\": 1}\n"), std::string::npos);
    EXPECT_TRUE(prompts[1].text.ends_with("<|assistant|><think></think>"));
    refused(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
            {"in.jsonl:1: messages[0].content[0].type", "not supported"});
    failed(R"({"messages": [{"role": "user", "content": "\u0000"}]})", {"messages", "NUL"});
    refused(R"({"messages": [{"role": "user"}], "chat_template_kwargs": {"x": 1}})",
            {"chat_template_kwargs.x", "1"});
    refused(R"({"messages": [{"role": "user"}], "clear_thinking": "yes"})", {"clear_thinking"});
}

TEST_F(Pack, LeavesOtherFilesAlone) {
    folder_.write("in.txt", "a\n");
    folder_.write("out.h5", "precious");
    expect_error(ErrorKind::usage, {"out.h5 exists and is left as it is", "not an HDF5 file"},
                 [&] { pack(options({"in.txt"})); });
    PackOptions over_input = options({"in.txt"});
    over_input.out = over_input.inputs[0];
    over_input.output_exists = OutputExists::overwrite;
    expect_error(ErrorKind::usage, {"--out", "in.txt"}, [&] { pack(over_input); });
    PackOptions missing = options({"in.txt"});
    missing.out = (folder_ / "none/out.h5").string();
    expect_error(ErrorKind::io, {"none/out.h5"}, [&] { pack(missing); });
    PackOptions into_folder = options({"in.txt"});
    into_folder.out = folder_.path().string();
    expect_error(ErrorKind::usage, {folder_.path().string(), "is a folder"},
                 [&] { pack(into_folder); });
    PackOptions absent = options({"none.txt"});
    absent.out = (folder_ / "other.h5").string();
    expect_error(ErrorKind::io, {"none.txt", "no such file"}, [&] { pack(absent); });
    std::ifstream in(folder_ / "out.h5");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "precious");
    PackOptions overwrite = options({"in.txt"});
    overwrite.output_exists = OutputExists::overwrite;
    expect_error(ErrorKind::usage, {"out.h5 exists and is left"}, [&] { pack(overwrite); });
    std::filesystem::remove(folder_ / "out.h5");
    pack(options({"in.txt"}));
    expect_error(ErrorKind::usage, {"out.h5 exists", "--output-exists overwrite"},
                 [&] { pack(options({"in.txt"})); });
    summary_ = pack(overwrite);
    EXPECT_EQ(read_back().size(), 1u);
}

}  // namespace
}  // namespace quadrille
