// SPDX-License-Identifier: Apache-2.0
// Numbers about the bundled checkpoints were counted with a few lines of Python over the headers.
#include "jobs/files/inspect.h"

#include "io/h5/schema.h"
#include "io/results/result_writer.h"
#include "io/text/tokenizer.h"
#include "jobs/common/table.h"
#include "jobs/files/checkpoint_summary.h"
#include "jobs/files/file_summary.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_results.h"
#include "tests/support/matrices.h"
#include "tests/support/stored_modules.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace quadrille {
namespace {

using test::expect_error;
using test::TempFolder;

// A line of the report that matches the pattern, blanks being any number of blanks.
void expect_line(const std::string& report, const std::string& pattern) {
    const std::string blanks = std::regex_replace(pattern, std::regex(" "), " +");
    EXPECT_TRUE(std::regex_search(report, std::regex("(^|\n) *" + blanks + " *(\n|$)")))
        << pattern << " in\n"
        << report;
}

TEST(Table, AlignsColumnsByCharacters) {
    Table table("lr");
    EXPECT_TRUE(table.empty());
    table.row({"größe", "1"}).row({"x", "100"}).row({"last", ""});
    EXPECT_EQ(table.text(), "  größe    1\n  x      100\n  last\n");
    expect_error(ErrorKind::internal, {"a cell a column"}, [&] { table.row({"one"}); });
}

TEST(Table, CutsTextToOneLine) {
    EXPECT_EQ(excerpt("short", 5), "short");
    EXPECT_EQ(excerpt("longer", 5), "long…");
    EXPECT_EQ(excerpt("a\nb\tc", 10), "a b c");
    EXPECT_EQ(excerpt("ääääää", 4), "äää…");
    EXPECT_EQ(excerpt(std::string(1000, 'y'), 4), "yyy…");
    EXPECT_EQ(display_width("grün…"), 5);
}

TEST(Table, FormatsBytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(999), "999 B");
    EXPECT_EQ(format_bytes(1000), "1.0 kB");
    EXPECT_EQ(format_bytes(999'600), "1.0 MB");
    EXPECT_EQ(format_bytes(22'300'000), "22.3 MB");
    EXPECT_EQ(format_bytes(795'000), "795 kB");
}

TEST(CheckpointSummary, ClassesTensorsByName) {
    const std::string layer = "model.language_model.layers.45.";
    EXPECT_EQ(tensor_class(layer + "self_attn.o_proj.trellis", 46), "attention");
    EXPECT_EQ(tensor_class(layer + "self_attn.o_proj.trellis", 45), "MTP");
    EXPECT_EQ(tensor_class(layer + "self_attn.o_proj.trellis", -1), "attention");
    EXPECT_EQ(tensor_class(layer + "self_attn.indexer.k_norm.bias", 46), "indexer");
    EXPECT_EQ(tensor_class(layer + "mlp.experts.7.up_proj.mcg", 46), "routed experts");
    EXPECT_EQ(tensor_class(layer + "mlp.shared_experts.up_proj.mcg", 46), "shared experts");
    EXPECT_EQ(tensor_class(layer + "mlp.gate.weight", 46), "router");
    EXPECT_EQ(tensor_class(layer + "mlp.gate_proj.weight", 46), "dense MLP");
    EXPECT_EQ(tensor_class(layer + "hc_ffn_fn", 46), "hyper-connections");
    EXPECT_EQ(tensor_class("model.visual.blocks.0.norm1.weight", 46), "vision");
    EXPECT_EQ(tensor_class("lm_head.weight", 46), "head");
    EXPECT_EQ(tensor_class("layers.0.mlp_conv.base_kernel", -1), "draft convolutions");
    EXPECT_EQ(tensor_class("fc.weight", -1), "taps");
}

TEST(CheckpointSummary, CountsTheBundledModel) {
    const Checkpoint checkpoint(test::data("models/demo-full-4bpw"));
    const CheckpointSummary summary = summarize(checkpoint, 8);
    EXPECT_EQ(summary.total.tensors, 914);
    EXPECT_EQ(summary.total.weights, 30'809'848);  // elements of the same model in BF16
    const ClassSummary& experts = summary.classes.at("routed experts");
    EXPECT_EQ(experts.tensors, 6 * 8 * 3 * 4);
    EXPECT_EQ(experts.weights, 6 * 8 * 3 * 512 * 256);
    // 4 bits, and per matrix two scale vectors of 768 fp16 values together and a 4-byte marker.
    EXPECT_EQ(experts.bytes, experts.weights / 2 + 6 * 8 * 3 * (768 * 2 + 4));
    EXPECT_EQ(experts.forms, std::set<std::string>{"EXL3 4 bits mul1"});
    EXPECT_EQ(summary.suffixes.at(".trellis"), 191);
    EXPECT_EQ(summary.classes.at("embedding").bits(), 16.0);
    EXPECT_EQ(summary.modules
                  .at({"model.language_model.layers.*.self_attn.qkv_proj", "EXL3 6 bits mul1",
                       "[1536, 256]"})
                  .count,
              6);
}

// `scale` beside a trellis is a relic that the format says to ignore.
TEST(CheckpointSummary, CountsNoScaleOfAnExl3Module) {
    test::Random random(41);
    const auto data = test::MatrixData::exl3(random, 128, 256, 4, Codebook::mcg);
    std::vector<test::StoredTensor> tensors = test::exl3_tensors("mlp.a", data.matrix());
    tensors.push_back(test::zeros("mlp.a.scale", "F32", {1}));
    const test::StoredModules stored(tensors);
    const CheckpointSummary summary = summarize(stored.checkpoint(), 1);
    EXPECT_EQ(summary.total.weights, 128 * 256);
    EXPECT_EQ(summary.total.forms, std::set<std::string>{"EXL3 4 bits mcg"});
    EXPECT_EQ(summary.modules.size(), 1u);
    EXPECT_EQ(summary.suffixes.at(".scale"), 1);
}

// The loader refuses such a module too, with the same message.
TEST(CheckpointSummary, RefusesTwoCodebooks) {
    test::Random random(42);
    const auto data = test::MatrixData::exl3(random, 128, 128, 2, Codebook::mcg);
    std::vector<test::StoredTensor> tensors = test::exl3_tensors("a.rank0", data.matrix());
    tensors.push_back(test::marker("a", Codebook::mul1));
    const test::StoredModules stored(tensors);
    expect_error(ErrorKind::input, {"module a", "both codebook markers"},
                 [&] { summarize(stored.checkpoint(), 1); });
}

TEST(Inspect, DescribesCheckpoints) {
    const std::string target = describe_path(test::data("models/demo-full-4bpw"), 5);
    expect_line(target, "layers 8 \\(6 KDA, 2 MLA; 2 dense, 6 MoE\\), 0 MTP");
    expect_line(target, "routed experts 576 18874368 9\\.7 MB 4\\.09 EXL3 4 bits mul1");
    expect_line(target, "lm_head EXL3 6 bits mul1 \\[4096, 256\\] 1 786 kB");
    const std::string draft = describe_path(test::data("models/demo-dflash2"), 5);
    expect_line(draft, "model DFlash2 drafter");
    expect_line(draft, "total 51 4448640 8\\.9 MB 16\\.00");
}

TEST(Inspect, DescribesPrompts) {
    const TempFolder folder;
    const auto path = folder / "prompts.h5";
    {
        h5::File file = h5::File::create(path);
        schema::stamp(file, schema::kPrompts);
        h5::Group prompts = file.create_group("prompts");
        prompts.create_dataset("text", h5::Element::string, {3})
            .write_strings(0, std::vector<std::string>{"one\ntwo", "", "three"});
        prompts.create_dataset("max_new_tokens", h5::Element::i64, {3})
            .write<int64_t>(0, std::vector<int64_t>{1, 2, 3});
        prompts.create_dataset("colour", h5::Element::i64, {1});
        prompts.set_attribute("top_p", 0.5);
    }
    const std::string report = describe_path(path, 2);
    expect_line(report, "records 3");
    expect_line(report, "text bytes 12 \\(shortest 0, longest 7\\)");
    expect_line(report, "options max_new_tokens, top_p = 0\\.5");
    expect_line(report, "record errors 1; record 1: empty prompt");
    expect_line(report, "/prompts/text string \\[3\\]");
    expect_line(report, "0 7 one two");
    expect_line(report, "1 0 error: empty prompt");
    EXPECT_NE(report.find("note: "), std::string::npos);
    EXPECT_EQ(report.find("three"), std::string::npos);
}

TEST(Inspect, DescribesGenerationsAndParts) {
    const TempFolder folder;
    const Ids ids = std::vector<std::string>{"a", "b", "c"};
    ResultOptions o;
    o.out = folder / "generations.h5";
    o.layout.k = 2;
    o.layout.text = true;
    o.records = first_records(3);
    o.ids = {&ids};
    o.fingerprint = {{"target_digest", "0123"}};
    ResultWriter writer(o);
    writer.add(test::make_failure(1, "empty prompt"));
    writer.add(test::make_generation(0, 7, 2));
    writer.commit();
    const std::string parts = describe_path(parts_folder(o.out), 5);
    expect_line(parts, "target_digest 0123");
    EXPECT_NE(parts.find("part-0-000000.h5: part, format 1, complete"), std::string::npos);
    EXPECT_NE(parts.find("generations.h5.parts: 2 of 3 records done\n"), std::string::npos)
        << parts;
    expect_line(parts, "status 1 ok, 1 error");
    // The name of the output stands for its parts until it is there.
    EXPECT_EQ(describe_path(o.out, 5), parts);
    EXPECT_EQ(overview_row(view_run(o.out)),
              (std::vector<std::string>{(folder / "generations.h5.parts").string(), "2", "3", "1",
                                        "7", "2.0000"}));
    writer.add(test::make_generation(2, 2, 2));
    writer.finish({{"version", "9.9"}, {"command_line", "quadrille\ngenerate"}});
    const std::string report = describe_path(o.out, 5);
    expect_line(report, "records 3");
    expect_line(report, "tokens 9");
    expect_line(report, "status 2 ok, 1 error");
    expect_line(report, "finish reasons 1 eos, 1 length, 1 error");
    expect_line(report, "statistics consistent");
    expect_line(report, "/acceptance/histogram int64 \\[3, 3\\]");
    expect_line(report, "accept length 1\\.7500 ± 0\\.3750");
    expect_line(report, "accepted per step 0\\.7500");
    // 4 steps accept 0, 1, 2 and 0 drafts.
    expect_line(report, "0 4 100\\.0 % 2 50\\.0 %");
    expect_line(report, "1 2 50\\.0 % 1 25\\.0 %");
    expect_line(report, "2 1 25\\.0 % 1 25\\.0 %");
    expect_line(report, "command_line quadrille generate");
    expect_line(report, "1 b error 0 - error: empty prompt");
    expect_line(report, "0 a length 7 2\\.0000 text 0");
    {
        h5::File file = h5::File::open_write(o.out);
        file.dataset("acceptance/steps").write<int64_t>(2, std::vector<int64_t>{5});
        file.set_attribute("complete", int64_t{0});
    }
    const std::string changed = describe_path(o.out, 0);
    EXPECT_NE(changed.find("NOT complete"), std::string::npos);
    expect_line(changed,
                "statistics 1 records disagree; record 2: sum of histogram is 1, steps is 5");
}

TEST(Inspect, RefusesCheckpointsWhoseSideFilesAreBroken) {
    const test::TempFolder folder;
    const std::filesystem::path model = folder / "model";
    std::filesystem::copy(test::data("models/demo-full-4bpw"), model);
    for (const char* name : {"config.json", "tokenizer.json"}) {
        const std::filesystem::path sound = folder / "sound";
        std::filesystem::rename(model / name, sound);
        std::ofstream(model / name) << R"({"a":)";
        if (name == std::string("config.json") || text_supported()) {
            expect_error(ErrorKind::input, {name}, [&] { describe_path(model, 5); });
        }
        std::filesystem::rename(sound, model / name);
    }
}

TEST(Inspect, RefusesWhatItCannotRead) {
    const TempFolder folder;
    expect_error(ErrorKind::io, {"none"}, [&] { describe_path(folder / "none", 5); });
    expect_error(ErrorKind::input, {"x.txt", "not an HDF5 file"},
                 [&] { describe_path(folder.write("x.txt", "text"), 5); });
    expect_error(ErrorKind::input, {"foreign.h5", "not a file of this program"},
                 [&] { describe_path(test::data("foreign.h5"), 5); });
    expect_error(ErrorKind::input, {folder.path().string()},
                 [&] { describe_path(folder.path(), 5); });
}

}  // namespace
}  // namespace quadrille
