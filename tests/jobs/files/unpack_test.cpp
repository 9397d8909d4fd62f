// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/unpack.h"

#include "io/results/generation_table.h"
#include "io/results/result_writer.h"
#include "io/text/tokenizer.h"
#include "jobs/files/batch_output.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_results.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TempFolder;

class UnpackTest : public testing::Test {
  protected:
    std::string make(const std::string& name, int64_t records, const Ids& ids) const {
        ResultOptions o;
        o.out = folder_ / name;
        o.layout.k = 2;
        o.layout.text = true;
        o.records = first_records(records);
        o.ids = {&ids};
        ResultWriter writer(o);
        writer.add(test::make_failure(0, "empty \"prompt\""));
        for (int64_t i = records; i-- > 1;) writer.add(test::make_generation(i, 4 + i, 2));
        writer.finish({{"target", std::string("models/tiny/")},
                       {"end", std::string("2001-09-09T01:46:40Z")}});
        return o.out.string();
    }
    static std::vector<std::string> lines_of(const std::filesystem::path& path) {
        std::ifstream in(path);
        std::vector<std::string> lines;
        for (std::string line; std::getline(in, line);) lines.push_back(line);
        return lines;
    }
    int64_t run(const UnpackOptions& o) {
        notices_.clear();
        return unpack(o, notices_);
    }
    UnpackOptions options(std::vector<std::string> inputs) const {
        UnpackOptions o;
        o.inputs = std::move(inputs);
        o.out = (folder_ / "out.jsonl").string();
        return o;
    }

    TempFolder folder_;
    std::vector<std::string> notices_;
    const Ids ids_ = std::vector<std::string>{"a", "b", "grün"};
};

TEST_F(UnpackTest, WritesAnObjectARecord) {
    UnpackOptions o = options({make("g.h5", 3, ids_)});
    EXPECT_EQ(run(o), 3);
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(json::parse(lines[0]),
              json::parse(R"({"index": 0, "id": "a", "status": "error", "finish_reason": "error",
                  "error": "empty \"prompt\"", "tokens": [], "text": "", "acceptance": {"steps": 0,
                  "drafted": 0, "accepted": 0, "emitted": 0, "by_position": [0, 0],
                  "histogram": [0, 0, 0]}})"));
    // 6 tokens: after the first, steps that accept 0, 1 and 2 (the last draft is the last token).
    EXPECT_EQ(json::parse(lines[2]),
              json::parse(R"({"index": 2, "id": "grün", "status": "ok", "finish_reason": "eos",
                  "error": null, "tokens": [62, 63, 64, 65, 66, 67], "text": "text 2",
                  "acceptance": {"steps": 3, "drafted": 6, "accepted": 3, "emitted": 5,
                  "by_position": [2, 1], "histogram": [1, 1, 1]}})"));
    EXPECT_TRUE(
        lines[1].starts_with(R"({"index":1,"id":"b","status":"ok","finish_reason":"length")"));
}

TEST_F(UnpackTest, JoinsSeveralFilesAndStopsAtTheLimit) {
    const Ids numbers = std::vector<int64_t>{-1, 7};
    const Ids none;
    UnpackOptions o = options({make("a.h5", 2, numbers), make("b.h5", 3, none)});
    EXPECT_EQ(run(o), 5);
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(json::parse(lines[1])["file"], o.inputs[0]);
    EXPECT_EQ(json::parse(lines[1])["id"], 7);
    EXPECT_EQ(json::parse(lines[4])["file"], o.inputs[1]);
    EXPECT_FALSE(json::parse(lines[4]).contains("id"));
    o.output_exists = OutputExists::overwrite;
    o.limit = 3;
    EXPECT_EQ(run(o), 3);
    EXPECT_EQ(lines_of(o.out), std::vector<std::string>(lines.begin(), lines.begin() + 3));
}

TEST_F(UnpackTest, WritesWhatAFileHasBesides) {
    Generation g = test::make_generation(4, 2, 1);
    g.source = 1;
    g.sample = 3;
    g.chosen_logprobs = {-0.5f, std::numeric_limits<float>::quiet_NaN()};
    g.top_ids = {7, -1};
    g.top_logprobs = {-0.25f, std::numeric_limits<float>::quiet_NaN()};
    GenerationLayout layout;
    layout.origin = true;
    layout.trace = true;
    layout.logprobs = 1;
    const auto object = json::parse(to_json(g, layout).dump());
    EXPECT_EQ(object["source"], 1);
    EXPECT_EQ(object["sample"], 3);
    EXPECT_FALSE(object.contains("text"));
    EXPECT_EQ(object["acceptance"]["trace"], json::parse("[0]"));
    EXPECT_EQ(object["logprobs"],
              json::parse(R"({"chosen": [-0.5, null], "top_ids": [7, -1], "top": [-0.25, null]})"));
}

TEST_F(UnpackTest, ChecksEverythingBeforeItWrites) {
    const std::string good = make("good.h5", 2, ids_);
    UnpackOptions o = options({good, folder_.write("text.h5", "no")});
    expect_error(ErrorKind::input, {"text.h5", "not an HDF5 file"}, [&] { run(o); });
    EXPECT_FALSE(std::filesystem::exists(o.out));
    o.inputs = {(folder_ / "none.h5").string()};
    expect_error(ErrorKind::io, {"none.h5", "No such file"}, [&] { run(o); });
    {
        h5::File file = h5::File::open_write(good);
        file.set_attribute("complete", int64_t{0});
    }
    o.inputs = {good};
    expect_error(ErrorKind::input, {"good.h5", "not complete"}, [&] { run(o); });
    o.inputs = {make("again.h5", 2, ids_)};
    folder_.write("out.jsonl", "keep");
    expect_error(ErrorKind::usage, {"out.jsonl exists"}, [&] { run(o); });
    EXPECT_EQ(lines_of(o.out), std::vector<std::string>{"keep"});
    o.output_exists = OutputExists::overwrite;
    o.out = o.inputs[0];
    expect_error(ErrorKind::usage, {"again.h5", "a name of its own"}, [&] { run(o); });
    o.out = folder_.path().string();
    expect_error(ErrorKind::usage, {"is a folder"}, [&] { run(o); });
    o.out = (folder_ / "no/such.jsonl").string();
    expect_error(ErrorKind::io, {"no/such.jsonl", "No such file"}, [&] { run(o); });
    o.out = "/dev/full";
    expect_error(ErrorKind::usage, {"/dev/full"}, [&] { run(o); });
}

TEST_F(UnpackTest, WritesBatchOutputLines) {
    UnpackOptions o = options({make("g.h5", 3, ids_)});
    o.format = "openai";
    EXPECT_EQ(run(o), 3);
    EXPECT_EQ(notices_, std::vector<std::string>{});
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(json::parse(lines[0]),
              json::parse(R"({"id": "batch_req_0-0", "custom_id": "a", "response": null,
                  "error": {"code": "record_error", "message": "empty \"prompt\""}})"));
    EXPECT_EQ(json::parse(lines[2]),
              json::parse(R"({"id": "batch_req_0-2", "custom_id": "grün", "error": null,
                  "response": {"status_code": 200, "request_id": "req-0-2", "body": {
                  "id": "chatcmpl-0-2", "object": "chat.completion", "created": 1000000000,
                  "model": "tiny", "choices": [{"index": 0,
                  "message": {"role": "assistant", "content": "text 2"}, "logprobs": null,
                  "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}}}})"));
    EXPECT_EQ(json::parse(lines[1])["response"]["body"]["choices"][0]["finish_reason"], "length");
}

TEST_F(UnpackTest, ALimitCountsLinesWhateverTheySum) {
    UnpackOptions o = options({(folder_ / "samples.h5").string()});
    std::vector<RecordKey> keys;
    for (int32_t i = 0; i < 9; ++i) keys.push_back({.prompt_index = i / 3, .sample = i % 3});
    const Ids none;
    ResultOptions result;
    result.out = o.inputs[0];
    result.layout.k = 2;
    result.layout.text = true;
    result.records = keys;
    result.ids = {&none};
    ResultWriter writer(result);
    for (const RecordKey& key : keys) {
        Generation generation = test::make_generation(key.prompt_index, 2, 2);
        generation.sample = key.sample;
        writer.add(generation);
    }
    writer.finish({});
    o.format = "openai";
    o.limit = 2;
    EXPECT_EQ(run(o), 6);
    EXPECT_EQ(lines_of(o.out).size(), 2u);
    o.format = "jsonl";
    o.output_exists = OutputExists::overwrite;
    EXPECT_EQ(run(o), 2);
    EXPECT_EQ(lines_of(o.out).size(), 2u);
}

TEST_F(UnpackTest, TellsOfBatchLinesWithTheSameId) {
    UnpackOptions o = options({make("a.h5", 3, ids_), make("b.h5", 3, ids_)});
    o.format = "openai";
    EXPECT_EQ(run(o), 6);
    ASSERT_EQ(notices_.size(), 1u);
    EXPECT_NE(notices_[0].find("3 lines have a custom_id that an earlier line has, \"a\""),
              std::string::npos)
        << notices_[0];
    const Ids none;
    o.inputs = {make("none.h5", 3, none)};
    o.output_exists = OutputExists::overwrite;
    EXPECT_EQ(run(o), 3);
    EXPECT_EQ(notices_, std::vector<std::string>{});
    EXPECT_EQ(json::parse(lines_of(o.out)[1])["custom_id"], "record-1");
    Generation further = test::make_generation(1, 2, 1);
    further.source = 2;
    further.id = std::string();  // of a file without ids beside one with
    EXPECT_EQ(custom_id(further), "record-2-1");
}

TEST_F(UnpackTest, SamplesOfAPromptShareABatchLine) {
    Generation first = test::make_generation(4, 3, 1);
    Generation second = test::make_failure(4, "cut off");
    Generation third = test::make_generation(4, 5, 1);
    second.sample = 1;
    third.sample = 2;
    const auto line = json::parse(to_batch_output({first, second, third}, {}).dump());
    const json& body = line["response"]["body"];
    ASSERT_EQ(body["choices"].size(), 2u);
    EXPECT_EQ(body["choices"][1]["index"], 2);
    EXPECT_EQ(body["usage"],
              json::parse(R"({"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17})"));
    first.prompt_tokens = -1;  // of a file that does not tell
    const auto untold = json::parse(to_batch_output({first}, {}).dump());
    EXPECT_EQ(untold["response"]["body"]["usage"], json::parse(R"({"completion_tokens": 3})"));
}

// Spells token i as the byte 'a' + i; 3 is half a character.
class Letters : public Tokenizer {
  public:
    std::vector<int32_t> encode(std::string_view) const override { return {}; }
    std::string decode(std::span<const int32_t>, bool) const override { return ""; }
    std::string token_bytes(int32_t token) const override {
        return token == 3 ? "\xc3" : std::string(1, static_cast<char>('a' + token));
    }
    bool is_known(int32_t) const override { return true; }
    bool is_special(int32_t) const override { return false; }
    int32_t added_token(std::string_view) const override { return -1; }
    int32_t size() const override { return 26; }
    std::string digest() const override { return ""; }
};

TEST_F(UnpackTest, SpellsOutLogprobsOfBatchLines) {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    Generation g = test::make_generation(0, 2, 1);  // tokens 0 and 1
    g.chosen_logprobs = {-0.5f, -std::numeric_limits<float>::infinity()};
    g.top_ids = {0, 3, 2, -1};  // the second token has one alternative only
    g.top_logprobs = {-0.5f, -2.0f, -0.25f, kNone};
    const Letters letters;
    const auto logprobs = [&](const Tokenizer* tokenizer) {
        const BatchOutput output{.model = "m", .created = 1, .tokenizer = tokenizer};
        return json::parse(
            to_batch_output({g}, output).dump())["response"]["body"]["choices"][0]["logprobs"];
    };
    EXPECT_EQ(logprobs(&letters), json::parse(R"({"content": [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "\ufffd", "logprob": -2.0, "bytes": [195]}]},
        {"token": "b", "logprob": -9999.0, "bytes": [98], "top_logprobs": [
            {"token": "c", "logprob": -0.25, "bytes": [99]}]}]})"));
    EXPECT_TRUE(logprobs(nullptr).is_null());
    g.chosen_logprobs = {kNone, kNone};  // did not ask
    EXPECT_TRUE(logprobs(&letters).is_null());
    g.chosen_logprobs.clear();
    EXPECT_TRUE(logprobs(&letters).is_null());
}

TEST_F(UnpackTest, AnswersCompletionsAsCompletions) {
    Generation g = test::make_generation(0, 2, 1);  // tokens 0 and 1
    g.completion = true;
    g.chosen_logprobs = {-0.5f, -0.75f};
    g.top_ids = {0, 2, 1, -1};
    g.top_logprobs = {-0.5f, -2.0f, -0.75f, 0.0f};
    const Letters letters;
    const BatchOutput output{.model = "m", .created = 1, .tokenizer = &letters};
    const json body = json::parse(to_batch_output({g}, output).dump())["response"]["body"];
    EXPECT_EQ(body["object"], "text_completion");
    EXPECT_EQ(body["id"], "cmpl-0-0");
    EXPECT_EQ(body["choices"], json::parse(R"([{"index": 0, "text": "text 0", "logprobs": {
        "tokens": ["a", "b"], "token_logprobs": [-0.5, -0.75],
        "top_logprobs": [{"a": -0.5, "c": -2.0}, {"b": -0.75}], "text_offset": [0, 1]},
        "finish_reason": "stop"}])"));
}

TEST_F(UnpackTest, CompletionsAreKnownFromTheFile) {
    ResultOptions o;
    o.out = folder_ / "g.h5";
    o.layout.k = 2;
    o.layout.text = true;
    o.records = first_records(2);
    o.ids = {&ids_};
    o.completions = {false, true};
    ResultWriter writer(o);
    writer.add(test::make_generation(1, 2, 2));
    writer.add(test::make_generation(0, 2, 2));
    writer.finish({});
    UnpackOptions unpack_options = options({o.out.string()});
    unpack_options.format = "openai";
    EXPECT_EQ(run(unpack_options), 2);
    const auto lines = lines_of(unpack_options.out);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_NE(lines[0].find(R"("object":"chat.completion")"), std::string::npos);
    EXPECT_NE(lines[1].find(R"("object":"text_completion")"), std::string::npos);
}

TEST_F(UnpackTest, LogprobsNeedTheTokenizerOfTheRun) {
    if (!text_supported()) GTEST_SKIP() << "built without a tokenizer";
    const std::string model = QUADRILLE_TEST_DATA "/models/demo-full-4bpw";
    const auto made_with = [&](const std::string& name, const std::string& digest) {
        ResultOptions o;
        o.out = folder_ / name;
        o.layout.k = 2;
        o.layout.text = true;
        o.layout.logprobs = 0;
        o.records = first_records(1);
        const Ids none;
        o.ids = {&none};
        ResultWriter writer(o);
        Generation g = test::make_generation(0, 2, 2);
        g.chosen_logprobs = {-1.0f, -2.0f};
        writer.add(g);
        writer.finish({{"tokenizer_digest", digest}});
        return o.out.string();
    };
    UnpackOptions o = options({made_with("g.h5", make_tokenizer(model)->digest())});
    o.format = "openai";
    EXPECT_EQ(run(o), 1);
    ASSERT_EQ(notices_.size(), 1u);
    EXPECT_NE(notices_[0].find("logprobs are left out"), std::string::npos) << notices_[0];
    o.output_exists = OutputExists::overwrite;
    o.target = model;
    EXPECT_EQ(run(o), 1);
    EXPECT_EQ(notices_, std::vector<std::string>{});
    const json line = json::parse(lines_of(o.out).at(0));
    const json& choice = line["response"]["body"]["choices"][0];
    EXPECT_EQ(choice["logprobs"]["content"].size(), 2u);
    EXPECT_EQ(choice["logprobs"]["content"][1]["logprob"], -2.0);
    o.inputs = {made_with("other.h5", "0123")};
    expect_error(ErrorKind::input, {"other.h5", "0123", "--target"}, [&] { run(o); });
    o.inputs = {made_with("again.h5", "")};
    o.target = folder_.path().string();
    expect_error(ErrorKind::input, {"tokenizer.json"}, [&] { run(o); });
}

}  // namespace
}  // namespace quadrille
