// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/model_config.h"

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace quadrille {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TempFolder;

json document(const char* model) {
    std::ifstream in(test::data(std::string("models/") + model) / "config.json");
    return json::parse(in);
}

json target() {
    return document("demo-full-4bpw");
}
json draft() {
    return document("demo-dflash2");
}

ModelConfig read_target(const json& config) {
    TempFolder folder;
    folder.write("config.json", config.dump());
    return read_model_config(folder.path());
}

DraftConfig read_draft(const json& config) {
    TempFolder folder;
    folder.write("config.json", config.dump());
    return read_draft_config(folder.path());
}

TEST(ModelConfig, ReadsTheBundledTarget) {
    const ModelConfig config = read_model_config(test::data("models/demo-full-4bpw"));
    EXPECT_EQ(config.hidden_size, 256);
    EXPECT_EQ(config.vocab_size, 4096);
    EXPECT_EQ(config.num_layers, 8);
    EXPECT_EQ(config.num_mtp_layers, 0);
    EXPECT_EQ(config.intermediate_size, 1024);
    EXPECT_EQ(config.moe_intermediate_size, 512);
    EXPECT_EQ(config.num_experts, 8);
    EXPECT_EQ(config.experts_per_token, 2);
    EXPECT_EQ(config.num_shared_experts, 1);
    EXPECT_EQ(config.routed_scaling_factor, 2.5);
    EXPECT_EQ(config.swiglu_limit, 10.0);
    EXPECT_EQ(config.num_heads, 4);
    EXPECT_EQ(config.q_lora_rank, 128);
    EXPECT_EQ(config.kv_lora_rank, 128);
    EXPECT_EQ(config.qk_nope_head_dim, 128);
    EXPECT_EQ(config.v_head_dim, 128);
    EXPECT_EQ(config.index_topk, 512);
    EXPECT_EQ(config.index_heads, 16);
    EXPECT_EQ(config.index_head_dim, 64);
    EXPECT_EQ(config.index_kpool, 4);
    EXPECT_EQ(config.linear_heads, 4);
    EXPECT_EQ(config.linear_head_dim, 128);
    EXPECT_EQ(config.linear_conv_kernel, 4);
    EXPECT_EQ(config.linear_lower_bound, -5.0);
    EXPECT_EQ(config.hc_mult, 4);
    EXPECT_EQ(config.hc_sinkhorn_iters, 20);
    EXPECT_EQ(config.hc_eps, 1e-6);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_EQ(config.max_position_embeddings, 8192);
    EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{4032, 4039, 4041}));
    using enum AttentionKind;
    EXPECT_EQ(config.attention,
              (std::vector<AttentionKind>{kda, kda, kda, mla, kda, kda, kda, mla}));
    ASSERT_EQ(config.ffn.size(), 8u);
    EXPECT_EQ(config.ffn[1], FfnKind::dense);
    EXPECT_EQ(config.ffn[2], FfnKind::moe);
}

TEST(ModelConfig, FlatFileFlatKdaNamesAndFallbacksMeanTheSame) {
    const ModelConfig nested = read_target(target());
    json flat = target()["text_config"];
    const json kda = flat["linear_attn_config"];
    for (const char* key : {"linear_attn_config", "layer_types", "mlp_layer_types",
                            "num_nextn_predict_layers", "scoring_func", "n_group"}) {
        flat.erase(key);
    }
    flat["linear_num_heads"] = kda["num_heads"];
    flat["linear_head_dim"] = kda["head_dim"];
    flat["linear_conv_kernel_dim"] = kda["short_conv_kernel_size"];
    flat["linear_lower_bound"] = kda["gate_lower_bound"];
    const ModelConfig config = read_target(flat);
    EXPECT_EQ(config.attention, nested.attention);
    EXPECT_EQ(config.ffn, nested.ffn);
    EXPECT_EQ(config.linear_heads, nested.linear_heads);
    EXPECT_EQ(config.linear_head_dim, nested.linear_head_dim);
    EXPECT_EQ(config.linear_conv_kernel, nested.linear_conv_kernel);
    EXPECT_EQ(config.linear_lower_bound, nested.linear_lower_bound);
    EXPECT_EQ(config.num_mtp_layers, 0);
    EXPECT_EQ(config.eos_token_ids, nested.eos_token_ids);
}

TEST(ModelConfig, LayerListsWinOverTheFallbacks) {
    json config = target();
    config["text_config"]["layer_types"][0] = "deepseek_sparse_attention";
    config["text_config"]["mlp_layer_types"][0] = "sparse";
    const ModelConfig read = read_target(config);
    EXPECT_EQ(read.attention[0], AttentionKind::mla);
    EXPECT_EQ(read.ffn[0], FfnKind::moe);
}

TEST(ModelConfig, EndTokensComeFromEveryFileThatListsThem) {
    json config = target();
    config["text_config"]["eos_token_id"] = 7;
    EXPECT_EQ(read_target(config).eos_token_ids, (std::vector<int32_t>{7}));
    TempFolder folder;
    folder.write("config.json", config.dump());
    folder.write("generation_config.json", R"({"eos_token_id": [9, 7], "temperature": 1.0})");
    EXPECT_EQ(read_model_config(folder.path()).eos_token_ids, (std::vector<int32_t>{7, 9}));
    config["text_config"].erase("eos_token_id");
    config["eos_token_id"] = {3};
    EXPECT_EQ(read_target(config).eos_token_ids, (std::vector<int32_t>{3}));
    config.erase("eos_token_id");
    expect_error(ErrorKind::input, {"config.json", "text_config.eos_token_id", "nothing"},
                 [&] { read_target(config); });
    folder.write("generation_config.json", R"({"eos_token_id": 4096})");
    expect_error(ErrorKind::input, {"generation_config.json", "eos_token_id", "4095", "4096"},
                 [&] { read_model_config(folder.path()); });
}

// Every field the reader needs: absent, of another type, and out of range must each be named.
TEST(ModelConfig, NamesEveryFieldThatIsMissingOrImpossible) {
    for (const char* key : {"hidden_size",
                            "vocab_size",
                            "num_hidden_layers",
                            "intermediate_size",
                            "moe_intermediate_size",
                            "n_routed_experts",
                            "num_experts_per_tok",
                            "n_shared_experts",
                            "routed_scaling_factor",
                            "swiglu_limit",
                            "num_attention_heads",
                            "q_lora_rank",
                            "kv_lora_rank",
                            "qk_nope_head_dim",
                            "v_head_dim",
                            "index_topk",
                            "index_n_heads",
                            "index_head_dim",
                            "index_kpool",
                            "hc_mult",
                            "hc_sinkhorn_iters",
                            "hc_eps",
                            "rms_norm_eps",
                            "max_position_embeddings"}) {
        const std::string name = std::string("config.json: text_config.") + key + ": expected";
        json config = target();
        config["text_config"].erase(key);
        expect_error(ErrorKind::input, {name, "found nothing"}, [&] { read_target(config); });
        config["text_config"][key] = nullptr;
        expect_error(ErrorKind::input, {name, "found null"}, [&] { read_target(config); });
        config["text_config"][key] = "12";
        expect_error(ErrorKind::input, {name, "found \"12\""}, [&] { read_target(config); });
        config["text_config"][key] = -3;
        expect_error(ErrorKind::input, {name, "found -3"}, [&] { read_target(config); });
        config["text_config"][key] = 1e300;
        expect_error(ErrorKind::input, {name, "found 1e+300"}, [&] { read_target(config); });
    }
}

TEST(ModelConfig, RefusesWhatItDoesNotFollow) {
    const std::pair<const char*, json> cases[] = {
        {"qk_rope_head_dim", 64},
        {"n_group", 8},
        {"topk_group", 2},
        {"scoring_func", "softmax"},
        {"topk_method", "greedy"},
        {"norm_topk_prob", false},
        {"hidden_act", "gelu"},
        {"mla_use_nope", false},
        {"attention_bias", true},
        {"mhc", false},
        {"model_type", "llama"},
        {"index_kpool_compress", false},
        {"index_topk", 511},
        {"num_key_value_heads", 2},
        {"qk_head_dim", 192},
        {"indexer_types", {"full", "shared"}},
        {"num_experts_per_tok", 9},
        {"layer_types", {"linear_attention"}},
        {"mlp_layer_types", {"dense"}},
        {"layer_types", 5},
    };
    for (const auto& [key, value] : cases) {
        json config = target();
        config["text_config"][key] = value;
        expect_error(ErrorKind::input, {"config.json", std::string("text_config.") + key},
                     [&] { read_target(config); });
    }
    json config = target();
    config["text_config"]["layer_types"][5] = "full_attention";
    expect_error(ErrorKind::input, {"layer_types[5]", "full_attention"},
                 [&] { read_target(config); });
    config = target();
    config["text_config"]["linear_attn_config"].erase("gate_lower_bound");
    expect_error(ErrorKind::input, {"text_config.linear_attn_config.gate_lower_bound"},
                 [&] { read_target(config); });
    config = target();
    config["tie_word_embeddings"] = true;
    expect_error(ErrorKind::input, {"tie_word_embeddings", "false"}, [&] { read_target(config); });
    config = target();
    config["text_config"] = json::array();
    expect_error(ErrorKind::input, {"text_config", "an object"}, [&] { read_target(config); });
}

TEST(ModelConfig, RefusesAFileThatIsNoConfig) {
    TempFolder folder;
    expect_error(ErrorKind::input, {"config.json", "no such file"},
                 [&] { read_model_config(folder.path()); });
    folder.write("config.json", "{\"a\": ");
    expect_error(ErrorKind::input, {"config.json", "expected JSON"},
                 [&] { read_model_config(folder.path()); });
    folder.write("config.json", "[]");
    expect_error(ErrorKind::input, {"config.json", "an object"},
                 [&] { read_draft_config(folder.path()); });
}

TEST(DraftConfig, ReadsTheBundledDrafter) {
    const DraftConfig config = read_draft_config(test::data("models/demo-dflash2"));
    EXPECT_EQ(config.hidden_size, 256);
    EXPECT_EQ(config.intermediate_size, 1024);
    EXPECT_EQ(config.num_layers, 3);
    EXPECT_EQ(config.num_heads, 8);
    EXPECT_EQ(config.num_kv_heads, 4);
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.vocab_size, 4096);
    EXPECT_EQ(config.num_target_layers, 8);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_EQ(config.rope_theta, 10000.0);
    EXPECT_EQ(config.sliding, (std::vector<bool>{true, true, true}));
    EXPECT_EQ(config.sliding_window, 256);
    EXPECT_FALSE(config.is_causal);
    EXPECT_EQ(config.block_size, 8);
    EXPECT_EQ(config.mask_token_id, 4068);
    EXPECT_EQ(config.target_layer_ids, (std::vector<int64_t>{1, 3, 4, 6}));
    EXPECT_EQ(config.conv_group_size, 16);
    EXPECT_EQ(config.conv_kernel_size, 2);
    EXPECT_EQ(config.selector_rank, 64);
    EXPECT_EQ(config.selector_top_k, 16);
}

TEST(DraftConfig, ReadsAFirstGenerationDrafter) {
    json config = draft();
    for (const char* key :
         {"conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k", "block_size"}) {
        config["dflash_config"].erase(key);
    }
    config["block_size"] = 16;
    config.erase("rope_parameters");
    config["rope_theta"] = 1000000;
    config.erase("layer_types");
    config["use_sliding_window"] = false;
    config["sliding_window"] = nullptr;
    config.erase("is_causal");
    const DraftConfig read = read_draft(config);
    EXPECT_EQ(read.block_size, 16);
    EXPECT_EQ(read.rope_theta, 1e6);
    EXPECT_EQ(read.sliding, (std::vector<bool>{false, false, false}));
    EXPECT_EQ(read.sliding_window, 0);
    EXPECT_FALSE(read.is_causal);
    EXPECT_EQ(read.conv_group_size, 0);
    EXPECT_EQ(read.selector_top_k, 0);
}

TEST(DraftConfig, CausalityIsStatedOrFollowsTheLayers) {
    json config = draft();
    config.erase("is_causal");
    EXPECT_TRUE(read_draft(config).is_causal);
    config["dflash_config"]["causal"] = false;
    EXPECT_FALSE(read_draft(config).is_causal);
    config["is_causal"] = true;
    EXPECT_TRUE(read_draft(config).is_causal);
    config.erase("is_causal");
    config["dflash_config"].erase("causal");
    config["layer_types"][1] = "full_attention";
    expect_error(ErrorKind::input, {"config.json", "is_causal"}, [&] { read_draft(config); });
}

TEST(DraftConfig, NamesEveryFieldThatIsMissingOrImpossible) {
    for (const char* key :
         {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "vocab_size", "num_target_layers", "rms_norm_eps",
          "sliding_window", "dflash_config", "dflash_config.block_size",
          "dflash_config.mask_token_id", "dflash_config.target_layer_ids"}) {
        const std::string path = key;
        const size_t dot = path.find('.');
        const std::string name = "config.json: " + path + ": expected";
        for (const json& value : {json(), json("x"), json(-3), json(1e300)}) {
            json config = draft();
            json& object = dot == std::string::npos ? config : config["dflash_config"];
            object[dot == std::string::npos ? path : path.substr(dot + 1)] = value;
            expect_error(ErrorKind::input, {name}, [&] { read_draft(config); });
        }
    }
}

TEST(DraftConfig, RefusesWhatItDoesNotFollow) {
    const std::pair<const char*, json> cases[] = {
        {"/hidden_act", "gelu"},
        {"/attention_bias", true},
        {"/num_key_value_heads", 3},
        {"/head_dim", 63},
        {"/layer_types", {"sliding_attention"}},
        {"/layer_types/1", "linear_attention"},
        {"/rope_parameters/rope_type", "yarn"},
        {"/rope_parameters/rope_theta", "x"},
        {"/rope_theta", 5000.0},
        {"/block_size", 4},
        {"/draft_vocab_size", 1000},
        {"/final_logit_softcapping", 30.0},
        {"/dflash_config/projector_type", "domino"},
        {"/dflash_config/output_multiplier", 2.0},
        {"/dflash_config/conv_group_size", 100},
        {"/dflash_config/conv_kernel_size", nullptr},
        {"/dflash_config/selector_rank", nullptr},
        {"/dflash_config/mask_token_id", 4096},
        {"/dflash_config/target_layer_ids", json::array()},
        {"/dflash_config/target_layer_ids", {1, 3, 3}},
        {"/dflash_config/target_layer_ids", {6, 4}},
        {"/dflash_config/target_layer_ids", {1, 8}},
    };
    for (const auto& [path, value] : cases) {
        json config = draft();
        config[json::json_pointer(path)] = value;
        std::string key = path;
        key = key.substr(1);
        if (const size_t item = key.find("/1"); item != std::string::npos) key.resize(item);
        for (char& c : key) c = c == '/' ? '.' : c;
        if (key == "block_size") key = "dflash_config.block_size";
        expect_error(ErrorKind::input, {"config.json: " + key}, [&] { read_draft(config); });
    }
    TempFolder folder;
    folder.write("config.json", draft().dump());
    folder.write("mask_embedding.pt", "");
    expect_error(ErrorKind::input, {"mask_embedding.pt"},
                 [&] { read_draft_config(folder.path()); });
}

}  // namespace
}  // namespace quadrille
