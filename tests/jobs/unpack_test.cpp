// SPDX-License-Identifier: Apache-2.0
#include "jobs/unpack.h"

#include "io/generation_table.h"
#include "io/result_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_results.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
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
        writer.finish({});
        return o.out.string();
    }
    static std::vector<std::string> lines_of(const std::filesystem::path& path) {
        std::ifstream in(path);
        std::vector<std::string> lines;
        for (std::string line; std::getline(in, line);) lines.push_back(line);
        return lines;
    }
    UnpackOptions options(std::vector<std::string> inputs) const {
        UnpackOptions o;
        o.inputs = std::move(inputs);
        o.out = (folder_ / "out.jsonl").string();
        return o;
    }

    TempFolder folder_;
    const Ids ids_ = std::vector<std::string>{"a", "b", "grün"};
};

TEST_F(UnpackTest, WritesAnObjectARecord) {
    UnpackOptions o = options({make("g.h5", 3, ids_)});
    EXPECT_EQ(unpack(o), 3);
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
    EXPECT_EQ(unpack(o), 5);
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(json::parse(lines[1])["file"], o.inputs[0]);
    EXPECT_EQ(json::parse(lines[1])["id"], 7);
    EXPECT_EQ(json::parse(lines[4])["file"], o.inputs[1]);
    EXPECT_FALSE(json::parse(lines[4]).contains("id"));
    o.output_exists = OutputExists::overwrite;
    o.limit = 3;
    EXPECT_EQ(unpack(o), 3);
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
    expect_error(ErrorKind::input, {"text.h5", "not an HDF5 file"}, [&] { unpack(o); });
    EXPECT_FALSE(std::filesystem::exists(o.out));
    o.inputs = {(folder_ / "none.h5").string()};
    expect_error(ErrorKind::io, {"none.h5", "No such file"}, [&] { unpack(o); });
    {
        h5::File file = h5::File::open_write(good);
        file.set_attribute("complete", int64_t{0});
    }
    o.inputs = {good};
    expect_error(ErrorKind::input, {"good.h5", "not complete"}, [&] { unpack(o); });
    o.inputs = {make("again.h5", 2, ids_)};
    folder_.write("out.jsonl", "keep");
    expect_error(ErrorKind::usage, {"out.jsonl exists"}, [&] { unpack(o); });
    EXPECT_EQ(lines_of(o.out), std::vector<std::string>{"keep"});
    o.output_exists = OutputExists::overwrite;
    o.out = o.inputs[0];
    expect_error(ErrorKind::usage, {"is an input"}, [&] { unpack(o); });
    o.out = folder_.path().string();
    expect_error(ErrorKind::usage, {"not a regular file"}, [&] { unpack(o); });
    o.out = (folder_ / "no/such.jsonl").string();
    expect_error(ErrorKind::io, {"no/such.jsonl", "No such file"}, [&] { unpack(o); });
    o.out = "/dev/full";
    expect_error(ErrorKind::usage, {"/dev/full"}, [&] { unpack(o); });
}

TEST_F(UnpackTest, WritesBatchOutputLines) {
    UnpackOptions o = options({make("g.h5", 3, ids_)});
    o.format = "openai";
    EXPECT_EQ(unpack(o), 3);
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), 3u);
    const json failed = json::parse(lines[0]);
    EXPECT_EQ(failed["custom_id"], "a");
    EXPECT_TRUE(failed["response"].is_null());
    EXPECT_EQ(failed["error"]["message"], "empty \"prompt\"");
    const json worked = json::parse(lines[2]);
    EXPECT_EQ(worked["custom_id"], "grün");
    EXPECT_TRUE(worked["error"].is_null());
    EXPECT_EQ(worked["response"]["status_code"], 200);
    const json& body = worked["response"]["body"];
    EXPECT_EQ(body["choices"][0]["message"]["content"], "text 2");
    EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(body["usage"]["completion_tokens"], 6);
    EXPECT_EQ(json::parse(lines[1])["response"]["body"]["choices"][0]["finish_reason"], "length");
}

}  // namespace
}  // namespace quadrille
