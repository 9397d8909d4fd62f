// SPDX-License-Identifier: Apache-2.0
// Drafters that do not fit: named before a weight is read. And the slices of those that do.
#include "drafter/dflash2/draft_plan.h"

#include "tests/support/draft_case.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

DraftConfig demo() {
    return read_draft_config(trained_drafter());
}

ModelConfig demo_target() {
    return read_model_config(data("models/demo-full-4bpw"));
}

// The released drafter's sizes.
DraftConfig released() {
    DraftConfig config;
    config.hidden_size = 4096;
    config.intermediate_size = 12288;
    config.num_layers = 5;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    return config;
}

TEST(DraftConfigCheck, AcceptsTheTrainedDrafter) {
    check_draft_config(demo(), demo_target(), 7);
    check_draft_tensors(demo(), Checkpoint(trained_drafter()));
}

TEST(DraftConfigCheck, NamesWhatDoesNotFitTheTarget) {
    const auto refused = [](const std::function<void(DraftConfig&)>& alter,
                            std::initializer_list<std::string> parts) {
        DraftConfig config = demo();
        alter(config);
        expect_error(ErrorKind::input, parts,
                     [&] { check_draft_config(config, demo_target(), 2); });
    };
    refused([](auto& c) { c.hidden_size = 512; }, {"hidden_size", "256", "512"});
    refused([](auto& c) { c.vocab_size = 4097; }, {"vocab_size", "4096", "4097"});
    refused([](auto& c) { c.num_target_layers = 45; }, {"num_target_layers", "8", "45"});
    refused([](auto& c) { c.target_layer_ids = {1, 3, 4, 8}; }, {"target_layer_ids", "below 8"});
    refused([](auto& c) { c.target_layer_ids = {1, 4, 3, 6}; }, {"target_layer_ids", "1, 4, 3, 6"});
    refused([](auto& c) { c.target_layer_ids = {1, 3, 3, 6}; }, {"target_layer_ids", "ascending"});
    refused([](auto& c) { c.target_layer_ids = {-1, 3}; }, {"target_layer_ids", "-1, 3"});
    refused([](auto& c) { c.target_layer_ids = {}; }, {"target_layer_ids"});
    refused([](auto& c) { c.mask_token_id = 4096; }, {"mask_token_id", "4096"});
    refused([](auto& c) { c.mask_token_id = -1; }, {"mask_token_id", "-1"});
    refused([](auto& c) { c.block_size = 1; }, {"block_size", "1"});
}

TEST(DraftConfigCheck, DraftsMustFitTheBlock) {
    for (const int64_t k : {8, 63, -1}) {
        expect_error(ErrorKind::usage, {std::to_string(k), "0 to 7"},
                     [&] { check_draft_config(demo(), demo_target(), k); });
    }
}

// A copy of the trained drafter with one thing wrong.
void expect_refused(const DraftConfig& config, std::initializer_list<std::string> parts,
                    const std::function<bool(StoredTensor&)>& edit) {
    const auto folder = copy_drafter(edit);
    const Checkpoint checkpoint(folder->path());
    expect_error(ErrorKind::input, parts, [&] { check_draft_tensors(config, checkpoint); });
}

TEST(DraftTensorCheck, NamesTheMissingTensor) {
    for (const std::string name :
         {"candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook",
          "candidate_selector.hidden_projection.weight", "layers.2.attention_conv.base_kernel",
          "layers.1.mlp_conv.kernel_projection.weight", "fc.weight", "hidden_norm.weight",
          "layers.0.self_attn.k_norm.weight", "layers.1.mlp.down_proj.weight"}) {
        expect_refused(demo(), {name, "missing"},
                       [&](const StoredTensor& tensor) { return tensor.name != name; });
    }
}

TEST(DraftTensorCheck, NamesTheWrongShape) {
    const auto reshaped = [](const std::string& name, std::vector<int64_t> shape) {
        return [=](StoredTensor& tensor) {
            if (tensor.name == name) tensor.shape = shape;
            return true;
        };
    };
    expect_refused(demo(), {"fc.weight", "[256, 1024]", "[1024, 256]"},
                   reshaped("fc.weight", {1024, 256}));
    expect_refused(demo(), {"layers.0.attention_conv.base_kernel", "[2, 2, 256]", "[4, 256]"},
                   reshaped("layers.0.attention_conv.base_kernel", {4, 256}));
    DraftConfig config = demo();
    config.target_layer_ids = {1, 3, 4};
    expect_refused(config, {"fc.weight", "[256, 768]", "[256, 1024]"}, [](auto&) { return true; });
    config = demo();
    config.selector_rank = 32;
    expect_refused(config, {"candidate_selector.predecessor_codebook", "[4096, 32]"},
                   [](auto&) { return true; });
}

// Run as DFlash v1 they would draft, badly, and nobody would know why.
TEST(DraftTensorCheck, RefusesTensorsThatTheConfigDoesNotAnnounce) {
    DraftConfig config = demo();
    config.selector_rank = config.selector_top_k = 0;
    expect_refused(config, {"candidate_selector.hidden_projection", "no such tensor"},
                   [](auto&) { return true; });
    config = demo();
    config.conv_kernel_size = config.conv_group_size = 0;
    expect_refused(config, {"attention_conv", "no such tensor"}, [](auto&) { return true; });
    config = demo();
    config.num_layers = 2;
    expect_refused(config, {"layers.2.", "no such tensor"}, [](auto&) { return true; });
    for (const std::string name : {"lm_head.weight", "fcs.weight", "norm.bias", "fc", "fc.note"}) {
        const auto folder =
            copy_drafter([](auto&) { return true; }, {{name, "F32", {1}, std::string(4, '\0')}});
        const Checkpoint checkpoint(folder->path());
        expect_error(ErrorKind::input, {"tensor " + name + ":", "no such tensor"},
                     [&] { check_draft_tensors(demo(), checkpoint); });
    }
}

TEST(DraftPlan, SplitsHeadsWithTheirKeysAndValues) {
    for (const int ranks : {1, 2, 4}) {
        for (int rank = 0; rank < ranks; ++rank) {
            const DraftPlan small = plan_draft(demo(), DraftPlacement::sharded, ranks, rank);
            EXPECT_EQ(small.partial, ranks > 1);
            EXPECT_EQ(small.heads.size(), 8 / ranks);
            EXPECT_EQ(small.heads.begin, rank * 8 / ranks);
            EXPECT_EQ(small.kv_heads.begin, rank * 4 / ranks);
            EXPECT_EQ(small.kv_heads.size(), 4 / ranks);
            EXPECT_EQ(small.mlp.range.size(), 1024 / ranks);
            EXPECT_EQ(small.attention.segments, kSegments / ranks);
            const DraftPlan large = plan_draft(released(), DraftPlacement::sharded, ranks, rank);
            EXPECT_EQ(large.heads.size(), 32 / ranks);
            EXPECT_EQ(large.kv_heads.begin, rank * 8 / ranks);
            EXPECT_EQ(large.kv_heads.size(), 8 / ranks);
        }
    }
}

TEST(DraftPlan, RanksMayShareAKeyValueHead) {
    DraftConfig config = released();
    config.num_kv_heads = 2;
    for (int rank = 0; rank < 4; ++rank) {
        const DraftPlan plan = plan_draft(config, DraftPlacement::sharded, 4, rank);
        EXPECT_EQ(plan.heads.size(), 8);
        EXPECT_EQ(plan.kv_heads.begin, rank / 2);
        EXPECT_EQ(plan.kv_heads.size(), 1);
    }
}

TEST(DraftPlan, ReplicasAreWholeOnEveryRank) {
    for (int rank = 0; rank < 4; ++rank) {
        const DraftPlan plan = plan_draft(demo(), DraftPlacement::replicated, 4, rank);
        EXPECT_FALSE(plan.partial);
        EXPECT_EQ(plan.heads.size(), 8);
        EXPECT_EQ(plan.kv_heads.size(), 4);
        EXPECT_EQ(plan.attention.segments, kSegments);
        EXPECT_EQ(plan.mlp.range.size(), 1024);
    }
}

TEST(DraftPlan, NamesTheDimensionThatRanksDoNotDivide) {
    const auto refused = [](const std::function<void(DraftConfig&)>& alter, int ranks,
                            std::initializer_list<std::string> parts) {
        DraftConfig config = released();
        alter(config);
        expect_error(ErrorKind::usage, parts, [&] {
            for (int rank = 0; rank < ranks; ++rank) {
                plan_draft(config, DraftPlacement::sharded, ranks, rank);
            }
        });
        for (int rank = 0; rank < ranks; ++rank) {
            plan_draft(config, DraftPlacement::replicated, ranks, rank);
        }
    };
    // Three blocks: one segment is empty.
    refused([](auto& c) { c.num_heads = c.num_kv_heads = 3; }, 4,
            {"num_attention_heads", "3", "4 ranks", "replicated"});
    // A segment boundary inside a head.
    refused([](auto& c) { c.num_heads = c.num_kv_heads = 6, c.head_dim = 192; }, 4,
            {"num_attention_heads", "192"});
    refused([](auto& c) { c.intermediate_size = 384; }, 4, {"intermediate_size", "384"});
    // Three heads of a rank lie across two kv heads, which serve two each.
    refused([](auto& c) { c.num_heads = 12, c.num_kv_heads = 6; }, 4,
            {"num_key_value_heads", "6 for 12 heads", "holds 3"});
}

}  // namespace
}  // namespace quadrille::test
