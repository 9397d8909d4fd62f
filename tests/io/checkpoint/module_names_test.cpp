// SPDX-License-Identifier: Apache-2.0
// Names as the published packs carry them, and names that only look like them.
#include "io/checkpoint/module_names.h"

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/stored_modules.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace quadrille::test {
namespace {

std::string split(const std::string& name) {
    const TensorName out = parse_tensor_name(name);
    return out.module + '|' + (out.rank < 0 ? "" : std::to_string(out.rank)) + '|' +
           suffix(out.part);
}

StoredModules of_names(const std::vector<std::string>& names) {
    std::vector<StoredTensor> tensors;
    for (const std::string& name : names) tensors.push_back(zeros(name, "BF16", {2}));
    return StoredModules(tensors);
}

TEST(TensorName, IsModuleRankAndSuffix) {
    EXPECT_EQ(split("lm_head.weight"), "lm_head||weight");
    EXPECT_EQ(split("a.b.trellis"), "a.b||trellis");
    EXPECT_EQ(split("a.gate_proj.rank3.suh"), "a.gate_proj|3|suh");
    EXPECT_EQ(split("a.q_a_proj.weight_scale_inv"), "a.q_a_proj||weight_scale_inv");
    EXPECT_EQ(split("a.k_norm.bias"), "a.k_norm||bias");
    EXPECT_EQ(split("a.gate_proj.scale"), "a.gate_proj||scale");
    EXPECT_EQ(split("layers.0.hc_attn_fn"), "layers.0.hc_attn_fn||");
    EXPECT_EQ(split("layers.0.hc_attn_scale"), "layers.0.hc_attn_scale||");
    EXPECT_EQ(split("bare"), "bare||");
    EXPECT_EQ(split(""), "||");
}

// A module whose own name has ".rank" in it keeps it.
TEST(TensorName, IsSplitOnlyByANumberBehindRank) {
    EXPECT_EQ(split("a.ranking.trellis"), "a.ranking||trellis");
    EXPECT_EQ(split("a.rank.trellis"), "a.rank||trellis");
    EXPECT_EQ(split("a.rank1x.trellis"), "a.rank1x||trellis");
    EXPECT_EQ(split("a.rank0.b.trellis"), "a.rank0.b||trellis");
    EXPECT_EQ(split("a.rank99999999999.trellis"), "a.rank99999999999||trellis");
}

TEST(TensorName, IsMadeAsItIsParsed) {
    for (int part = 0; part <= static_cast<int>(TensorPart::scale); ++part) {
        for (const int32_t rank : {-1, 0, 3}) {
            if (part == 0 && rank >= 0) continue;  // nothing bare is split
            const std::string name = tensor_name("a.b", static_cast<TensorPart>(part), rank);
            const TensorName out = parse_tensor_name(name);
            EXPECT_EQ(out.module, "a.b") << name;
            EXPECT_EQ(out.rank, rank) << name;
            EXPECT_EQ(static_cast<int>(out.part), part) << name;
        }
    }
}

TEST(TensorPart, OfScalesMarkersAndRelicsHoldsNoWeights) {
    std::set<std::string> holding;
    for (int part = 0; part <= static_cast<int>(TensorPart::scale); ++part) {
        const auto each = static_cast<TensorPart>(part);
        if (holds_weights(each)) holding.insert(suffix(each));
    }
    EXPECT_EQ(holding, (std::set<std::string>{"", "weight", "bias", "trellis"}));
}

TEST(StoredAs, IsToldByTheNamesThatAreThere) {
    const StoredModules stored =
        of_names({"a.weight", "b", "c.trellis", "d.rank0.trellis", "e.rank1.trellis", "f.suh"});
    const auto form = [&](const char* module) { return stored_as(stored.checkpoint(), module); };
    EXPECT_EQ(form("a"), StoredAs::weight);
    EXPECT_EQ(form("b"), StoredAs::bare);
    EXPECT_EQ(form("c"), StoredAs::exl3);
    EXPECT_EQ(form("d"), StoredAs::exl3_split);
    for (const char* module : {"e", "f", "a.weigh", ""}) EXPECT_EQ(form(module), StoredAs::absent);
}

TEST(StoredAs, RefusesAModuleThatIsThereTwice) {
    for (const std::vector<std::string>& names :
         {std::vector<std::string>{"a", "a.weight"},
          std::vector<std::string>{"a.weight", "a.trellis"},
          std::vector<std::string>{"a.trellis", "a.rank0.trellis"}}) {
        const StoredModules stored = of_names(names);
        expect_error(ErrorKind::input, {"module a", "more than once"},
                     [&] { stored_as(stored.checkpoint(), "a"); });
    }
}

TEST(TextPrefix, IsThatOfTheEmbedding) {
    for (const std::string prefix : {"model.language_model.", "model.", ""}) {
        const StoredModules stored =
            of_names({prefix + "embed_tokens.weight", "model.visual.weight"});
        EXPECT_EQ(text_prefix(stored.checkpoint()), prefix);
    }
    const StoredModules draft = of_names({"fc.weight", "norm.weight"});
    EXPECT_EQ(find_text_prefix(draft.checkpoint()), std::nullopt);
    expect_error(ErrorKind::input, {"model.language_model.embed_tokens.weight is missing"},
                 [&] { text_prefix(draft.checkpoint()); });
}

// Names are told part by part, never by a piece of text inside one.
TEST(TensorName, TellsVisionTensorsAndLayers) {
    EXPECT_TRUE(is_vision("model.visual.blocks.0.norm1.weight"));
    EXPECT_TRUE(is_vision("visual.merger.weight"));
    EXPECT_TRUE(is_vision("vision_model.embeddings.weight"));
    EXPECT_FALSE(is_vision("model.language_model.layers.0.mlp.visually.weight"));
    EXPECT_EQ(layer_of("model.language_model.layers.45.eh_proj.weight"), 45);
    EXPECT_EQ(layer_of("layers.7.mlp.experts.3.up_proj.trellis"), 7);
    EXPECT_EQ(layer_of("model.sublayers.7.weight"), -1);
    EXPECT_EQ(layer_of("model.layers.seven.weight"), -1);
    EXPECT_EQ(layer_of("layers.7x.weight"), -1);
    EXPECT_EQ(layer_of("layers.99999999999999999999.weight"), -1);
    EXPECT_EQ(layer_of("lm_head.weight"), -1);
    EXPECT_EQ(layer_of("layers"), -1);
}

TEST(FusedNames, ReadTheWholeWhereItIsThere) {
    const auto stored = [](bool fused) {
        return stored_modules(kQkvNames, "layers.0.", [&](const std::string& module) {
            return fused && module == "layers.0.qkv_proj";
        });
    };
    EXPECT_EQ(stored(true), std::vector<std::string>{"layers.0.qkv_proj"});
    EXPECT_EQ(stored(false),
              (std::vector<std::string>{"layers.0.q_proj", "layers.0.k_proj", "layers.0.v_proj"}));
}

}  // namespace
}  // namespace quadrille::test
