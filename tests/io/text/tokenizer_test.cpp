// SPDX-License-Identifier: Apache-2.0
#include "io/text/tokenizer.h"

#include "io/text/utf8.h"
#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <random>

namespace quadrille {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TempFolder;
using Ids = std::vector<int32_t>;

class TokenizerTest : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        if (text_supported()) tokenizer_ = make_tokenizer(test::data("models/demo-full-4bpw"));
    }
    static void TearDownTestSuite() { tokenizer_.reset(); }
    void SetUp() override {
        if (!text_supported()) GTEST_SKIP() << "built without ICU";
    }
    static std::unique_ptr<Tokenizer> tokenizer_;
};

std::unique_ptr<Tokenizer> TokenizerTest::tokenizer_;

json document() {
    std::ifstream in(test::data("models/demo-full-4bpw") / "tokenizer.json");
    return json::parse(in);
}

// A tokenizer of the 256 bytes (ids 0..255) and the given merges; ids of results follow.
json tiny(const std::vector<std::pair<std::string, std::string>>& merges) {
    json result = document();
    json& model = result["model"];
    const json vocab = model["vocab"];
    json bytes = json::object();
    int64_t next = 0;
    for (const auto& [token, id] : vocab.items()) {
        if (id.get<int64_t>() < 256) bytes[token] = id;
    }
    next = 256;
    json list = json::array();
    for (const auto& [left, right] : merges) {
        if (!bytes.contains(left + right)) bytes[left + right] = next++;
        list.push_back({left, right});
    }
    model["vocab"] = bytes;
    model["merges"] = list;
    model["ignore_merges"] = false;
    result["added_tokens"] = json::array();
    return result;
}

std::unique_ptr<Tokenizer> make(const json& file) {
    TempFolder folder;
    folder.write("tokenizer.json", file.dump());
    return make_tokenizer(folder.path());
}

TEST_F(TokenizerTest, MatchesTheReferenceOnTheGoldenCases) {
    const test::Golden golden(test::data_path("demo_golden.h5"));
    const auto texts = golden.read_strings("tok_text");
    const auto ids = golden.read_ragged<int32_t>("tok_ids");
    ASSERT_EQ(texts.size(), ids.size());
    ASSERT_GE(texts.size(), 12u);
    for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(tokenizer_->encode(texts[i]), ids[i]) << texts[i];
        EXPECT_EQ(tokenizer_->decode(ids[i], false), texts[i]);
    }
}

TEST_F(TokenizerTest, SplitsByTheFirstAlternativeThatMatches) {
    // Contractions bind in either case, also with the long s (U+017F folds to s).
    const auto split_same = [&](std::string_view whole, std::initializer_list<const char*> parts) {
        Ids expected;
        for (const char* part : parts) {
            const Ids ids = tokenizer_->encode(part);
            expected.insert(expected.end(), ids.begin(), ids.end());
        }
        EXPECT_EQ(tokenizer_->encode(whole), expected) << whole;
    };
    split_same("I'LL", {"I", "'LL"});
    split_same("x'\xc5\xbfy", {"x", "'\xc5\xbf", "y"});
    split_same("1234567", {"123", "456", "7"});
    split_same("a   b", {"a", "  ", " b"});
    split_same("a \n\n  b", {"a", " \n\n", " ", " b"});
    split_same(
        "a\xc2\x85"
        "b",
        {"a",
         "\xc2\x85"
         "b"});
    split_same("!?\r\n\r\nx", {"!?\r\n\r\n", "x"});
    split_same("end  ", {"end", "  "});
    split_same("\xe2\x80\xa8\xe3\x80\x80z", {"\xe2\x80\xa8", "\xe3\x80\x80z"});
}

TEST_F(TokenizerTest, CutsAddedTokensOutFirst) {
    EXPECT_EQ(tokenizer_->encode("<|user|>"), Ids{4039});
    EXPECT_EQ(tokenizer_->encode("<think></think>").size(), 2u);
    const Ids around = tokenizer_->encode("a <|user|> b");
    Ids expected = tokenizer_->encode("a ");
    expected.push_back(4039);
    for (const int32_t id : tokenizer_->encode(" b")) expected.push_back(id);
    EXPECT_EQ(around, expected);
    EXPECT_LT(tokenizer_->encode("<|user|").back(), 4032);
    EXPECT_EQ(tokenizer_->encode(""), Ids{});
}

TEST_F(TokenizerTest, TheLongestAddedTokenWinsAndNormalizedOnesComeSecond) {
    json file = tiny({});
    const auto add = [&](const char* content, int id, bool normalized) {
        file["added_tokens"].push_back({{"id", id},
                                        {"content", content},
                                        {"special", false},
                                        {"normalized", normalized},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false}});
    };
    add("ab", 300, false);
    add("abc", 301, false);
    add("xabz", 302, true);
    const auto tokenizer = make(file);
    EXPECT_EQ(tokenizer->encode("abcab"), (Ids{301, 300}));
    Ids expected = {tokenizer->encode("x")[0], 300, tokenizer->encode("z")[0]};
    EXPECT_EQ(tokenizer->encode("xabz"), expected);
    EXPECT_FALSE(tokenizer->is_known(299));
    EXPECT_TRUE(tokenizer->is_known(302));
    EXPECT_EQ(tokenizer->size(), 303);
    EXPECT_EQ(tokenizer->decode(Ids{301, 299, -1, 303, 300}, false), "abcab");
}

TEST_F(TokenizerTest, MergesByRankThenFromTheLeft) {
    const auto by_rank = make(tiny({{"b", "c"}, {"a", "b"}, {"ab", "c"}}));
    EXPECT_EQ(by_rank->encode("abc").size(), 2u);  // a + bc: nothing joins them
    EXPECT_EQ(by_rank->token_bytes(by_rank->encode("abc")[1]), "bc");
    EXPECT_EQ(by_rank->encode("abd").size(), 2u);
    const auto leftmost = make(tiny({{"a", "a"}, {"aa", "aa"}}));
    EXPECT_EQ(leftmost->encode("aaaaaaa"), (Ids{257, 256, leftmost->encode("a")[0]}));
}

TEST_F(TokenizerTest, IgnoreMergesTakesAWholePiece) {
    json file = tiny({{"a", "b"}});
    file["model"]["vocab"]["xyz"] = 257;
    EXPECT_EQ(make(file)->encode("xyz").size(), 3u);
    file["model"]["ignore_merges"] = true;
    EXPECT_EQ(make(file)->encode("xyz"), Ids{257});
}

TEST_F(TokenizerTest, MergesMayBePairsOrStrings) {
    json file = document();
    const auto pairs = make(file);
    for (json& merge : file["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
    file["model"]["ignore_merges"] = false;
    const auto strings = make(file);
    const std::string text = "The quick brown fox, naïve café — 漢字 12345\n\tdef f(x): return x";
    EXPECT_EQ(strings->encode(text), pairs->encode(text));
    EXPECT_NE(strings->digest(), pairs->digest());
    EXPECT_EQ(pairs->digest(), make(document())->digest());
}

std::string random_text(std::mt19937& random, int characters) {
    static const char32_t kRanges[][2] = {{0x20, 0x7e},     {0x9, 0xd},         {0x80, 0x24f},
                                          {0x370, 0x5ff},   {0x600, 0x6ff},     {0x900, 0xdff},
                                          {0x1100, 0x11ff}, {0x1680, 0x1690},   {0x2000, 0x206f},
                                          {0x3000, 0x30ff}, {0x4e00, 0x4fff},   {0xac00, 0xadff},
                                          {0xfe00, 0xfffd}, {0x1f300, 0x1f6ff}, {0x20000, 0x20100}};
    std::string text;
    for (int i = 0; i < characters; ++i) {
        const auto& range =
            kRanges[random() % 2 == 0 ? random() % 2 : random() % std::size(kRanges)];
        append_utf8(text, range[0] + static_cast<char32_t>(random()) % (range[1] - range[0] + 1));
    }
    return text;
}

TEST_F(TokenizerTest, RoundTripsAnyText) {
    std::mt19937 random(7);
    for (int round = 0; round < 2000; ++round) {
        const std::string text = random_text(random, static_cast<int>(random() % 60));
        EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text), false), text);
    }
}

TEST_F(TokenizerTest, EncodesTheSameWithAndWithoutTheCache) {
    std::mt19937 random(8);
    for (int round = 0; round < 50; ++round) {
        const std::string text = random_text(random, 200);
        const Ids first = tokenizer_->encode(text);
        EXPECT_EQ(tokenizer_->encode(text), first);
        EXPECT_EQ(make_tokenizer(test::data("models/demo-full-4bpw"))->encode(text), first);
    }
}

TEST_F(TokenizerTest, LeavesSpecialTokensOutOnRequest) {
    const Ids ids = tokenizer_->encode("a<|user|>b<think>c");
    EXPECT_EQ(tokenizer_->decode(ids, false), "a<|user|>b<think>c");
    EXPECT_EQ(tokenizer_->decode(ids, true), "ab<think>c");  // <think> is added but not special
}

TEST_F(TokenizerTest, DecodesBrokenCharactersAsReplacements) {
    const Ids smile = tokenizer_->encode("\xf0\x9f\x99\x82");
    ASSERT_GT(smile.size(), 1u);
    EXPECT_EQ(tokenizer_->decode(smile, false), "\xf0\x9f\x99\x82");
    EXPECT_EQ(tokenizer_->decode(std::span(smile).first(smile.size() - 1), false), "\xef\xbf\xbd");
}

TEST_F(TokenizerTest, RefusesTextThatIsNotUtf8AtItsOffset) {
    expect_error(ErrorKind::input, {"UTF-8", "0xff", "offset 3"},
                 [&] { tokenizer_->encode("abc\xff"); });
    expect_error(ErrorKind::input, {"0xed", "offset 0"},
                 [&] { tokenizer_->encode("\xed\xa0\x80"); });
    expect_error(ErrorKind::input, {"0xc3", "offset 1"}, [&] { tokenizer_->encode("a\xc3"); });
}

// 200 kB without a place to split, of each kind the expression loops over. A quadratic merge takes
// minutes here.
TEST_F(TokenizerTest, LongRunsStayFast) {
    const auto start = std::chrono::steady_clock::now();
    std::mt19937 random(9);
    for (const std::string_view alphabet :
         {"abcdefghij", " ", " \n", "#", "=+-*/", "\xe6\xbc\xa2"}) {
        std::string text;
        while (text.size() < 200'000) {
            if (alphabet[0] & 0x80) {
                text += alphabet;
            } else {
                text += alphabet[random() % alphabet.size()];
            }
        }
        EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text), false), text);
        text += "x";
        EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text), false), text);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// 4 MB of each kind the expression loops over: neither a stack of its own nor a square of time. The
// pieces are known: of blanks before a letter the last belongs to it or stands alone.
TEST_F(TokenizerTest, RunsOfMegabytesAreEncodedAsTheirPieces) {
    constexpr size_t kRun = size_t{4} << 20;
    const auto start = std::chrono::steady_clock::now();
    const auto joined = [&](std::initializer_list<std::string> pieces) {
        Ids ids;
        for (const std::string& piece : pieces) {
            const Ids own = tokenizer_->encode(piece);
            ids.insert(ids.end(), own.begin(), own.end());
        }
        return ids;
    };
    const std::string blanks(kRun, ' ');
    EXPECT_EQ(tokenizer_->encode("x" + blanks + " y"), joined({"x", blanks, " y"}));
    const std::string lines(kRun, '\n');
    EXPECT_EQ(tokenizer_->encode("x" + lines + "y"), joined({"x", lines, "y"}));
    EXPECT_EQ(tokenizer_->encode("x " + lines + blanks + "\ty"),
              joined({"x", " " + lines, blanks, "\ty"}));
    const std::string letters(kRun, 'a');
    EXPECT_EQ(tokenizer_->encode(letters + " b"), joined({letters, " b"}));
    const std::string signs(kRun, '#');
    EXPECT_EQ(tokenizer_->encode("a" + signs + "b"), joined({"a", signs, "b"}));
    const std::string digits(kRun / 3 * 3, '7');
    EXPECT_EQ(tokenizer_->encode(digits).size(), tokenizer_->encode("777").size() * (kRun / 3));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(TokenizerTest, RefusesFilesThatAskForMore) {
    const auto refused = [](const char* path, const json& value,
                            std::initializer_list<std::string> parts) {
        json file = tiny({{"a", "b"}});
        file["added_tokens"] = {document()["added_tokens"][0]};
        file[json::json_pointer(path)] = value;
        expect_error(ErrorKind::input, parts, [&] { make(file); });
    };
    refused("/normalizer", {{"type", "NFC"}}, {"tokenizer.json: normalizer", "null", "NFC"});
    refused("/truncation", {{"max_length", 5}}, {"truncation"});
    refused("/padding", {{"strategy", "BatchLongest"}}, {"padding"});
    refused("/post_processor", {{"type", "BertProcessing"}}, {"post_processor.type", "Bert"});
    refused("/post_processor",
            {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}},
            {"post_processor.single", "special"});
    refused("/decoder", {{"type", "Metaspace"}}, {"decoder.type", "ByteLevel", "Metaspace"});
    refused("/pre_tokenizer", {{"type", "Whitespace"}}, {"pre_tokenizer.type", "Whitespace"});
    refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed", {"pretokenizers[0].behavior"});
    refused("/pre_tokenizer/pretokenizers/0/invert", true, {"pretokenizers[0].invert"});
    refused("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, {"pattern.Regex"});
    refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "a(b", {"regular expression", "a(b"});
    refused("/pre_tokenizer/pretokenizers/1/use_regex", true, {"pretokenizers[1].use_regex"});
    refused("/pre_tokenizer/pretokenizers/1/use_regex", nullptr, {"pretokenizers[1].use_regex"});
    refused("/pre_tokenizer/pretokenizers/1/add_prefix_space", true, {"add_prefix_space"});
    refused("/model/type", "WordPiece", {"model.type", "BPE", "WordPiece"});
    refused("/model/dropout", 0.1, {"model.dropout", "0.1"});
    refused("/model/byte_fallback", true, {"model.byte_fallback"});
    refused("/model/continuing_subword_prefix", "##", {"continuing_subword_prefix"});
    refused("/model/end_of_word_suffix", "</w>", {"end_of_word_suffix"});
    refused("/model/ignore_merges", 1, {"model.ignore_merges", "true or false"});
    refused("/model/vocab", json::array(), {"model.vocab", "an object"});
    refused("/model/vocab/ab", 3, {"model.vocab.ab", "no other token", "3"});
    refused("/model/vocab/ab", -1, {"model.vocab.ab", "-1"});
    refused("/model/vocab/ab", 99999999, {"model.vocab.ab", "99999999"});
    refused("/model/merges", 3, {"model.merges", "a list"});
    refused("/model/merges/0", json("ab"), {"model.merges[0]", "two tokens", "ab"});
    refused("/model/merges/0", json("a b c"), {"model.merges[0]", "two tokens"});
    refused("/model/merges/0", {"a", 1}, {"model.merges[0]", "two tokens"});
    refused("/model/merges/0", {"a", "zz"}, {"model.merges[0]", "of the vocabulary"});
    refused("/model/merges/0", {"b", "a"}, {"model.merges[0]", "\"ba\"", "vocabulary"});
    refused("/added_tokens/0/lstrip", true, {"added_tokens[0].lstrip"});
    refused("/added_tokens/0/single_word", true, {"added_tokens[0].single_word"});
    refused("/added_tokens/0/content", "", {"added_tokens[0].content"});
    refused("/added_tokens/0/content", "ab", {"added_tokens[0].id", "256"});
    refused("/added_tokens/0/id", 5, {"added_tokens[0].id", "no other token"});
    refused("/added_tokens/1", document()["added_tokens"][0], {"added_tokens[1].content"});
    json file = tiny({});
    file["model"]["vocab"].erase("Ġ");
    expect_error(ErrorKind::input, {"model.vocab", "every byte", "0x20"}, [&] { make(file); });
    TempFolder folder;
    EXPECT_FALSE(has_tokenizer(folder.path()));
    expect_error(ErrorKind::input, {"tokenizer.json", "no such file"},
                 [&] { make_tokenizer(folder.path()); });
    folder.write("tokenizer.json", "{\"model\":");
    EXPECT_TRUE(has_tokenizer(folder.path()));
    expect_error(ErrorKind::input, {"tokenizer.json", "expected JSON"},
                 [&] { make_tokenizer(folder.path()); });
}

TEST(TokenizerBuild, SaysSoWhenTextIsNotSupported) {
    if (text_supported()) GTEST_SKIP() << "built with ICU";
    expect_error(ErrorKind::usage, {"tokenizer.json", "ICU"},
                 [] { make_tokenizer(test::data("models/demo-full-4bpw")); });
}

}  // namespace
}  // namespace quadrille
