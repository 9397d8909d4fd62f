// SPDX-License-Identifier: Apache-2.0
// config.json of the target. Sizes are read and bounded so that products of a few of them fit 63
// bits; switches the implementation does not follow are refused by name when they differ.
#include "io/checkpoint/model_config.h"

#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace quadrille {

namespace {

using nlohmann::json;

constexpr int64_t kMaxFile = 1 << 26;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxSize = 1 << 22;  // a width, a rank, a number of heads or experts
constexpr int64_t kMaxToken = INT32_MAX;

// Fields that must have this one value if they are there at all: the forward pass has no other.
void check_fixed(const JsonObject& text) {
    const std::pair<const char*, json> fixed[] = {
        {"qk_rope_head_dim", 0},
        {"mla_use_nope", true},
        {"attention_bias", false},
        {"tie_word_embeddings", false},
        {"n_group", 1},
        {"topk_group", 1},
        {"scoring_func", "sigmoid"},
        {"topk_method", "noaux_tc"},
        {"norm_topk_prob", true},
        {"hidden_act", "silu"},
        {"mhc", true},
        {"index_kpool_compress", true},
        {"index_kpool_always_select_tail", true},
    };
    for (const auto& [key, value] : fixed) {
        const json* found = text.find(key);
        if (found && *found != value) text.fail(key, shown(value) + " (no other is supported)");
    }
    if (text.has("model_type")) {
        const std::string type = text.string("model_type");
        if (type != "glm5_next_text" && type != "glm5_next") {
            text.fail("model_type", "\"glm5_next_text\" or \"glm5_next\"");
        }
    }
    if (text.has("indexer_types")) {
        for (const std::string& type : text.strings("indexer_types")) {
            if (type != "full") text.fail("indexer_types", "\"full\" for every layer");
        }
    }
}

void read_kda(const JsonObject& text, ModelConfig& config) {
    if (text.has("linear_attn_config")) {
        const JsonObject kda = text.object("linear_attn_config");
        config.linear_heads = kda.integer("num_heads", 1, kMaxSize);
        config.linear_head_dim = kda.integer("head_dim", 1, kMaxSize);
        config.linear_conv_kernel = kda.integer("short_conv_kernel_size", 1, 64);
        // Without a bound the gate is another function (softplus).
        config.linear_lower_bound = kda.number("gate_lower_bound", -80.0, -1e-6);
    } else {
        config.linear_heads = text.integer("linear_num_heads", 1, kMaxSize);
        config.linear_head_dim = text.integer("linear_head_dim", 1, kMaxSize);
        config.linear_conv_kernel = text.integer("linear_conv_kernel_dim", 1, 64);
        config.linear_lower_bound = text.number("linear_lower_bound", -80.0, -1e-6);
    }
}

// One entry per layer, translated by `named`: (name, kind) pairs.
template <class Kind>
std::vector<Kind> layer_kinds(const JsonObject& text, const char* key, int64_t num_layers,
                              std::initializer_list<std::pair<const char*, Kind>> named) {
    const auto names = text.strings(key);
    if (std::ssize(names) != num_layers) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: {}: expected {} entries (num_hidden_layers), found {}",
                                text.place(), text.name(key), num_layers, names.size()));
    }
    std::vector<Kind> kinds;
    for (const std::string& name : names) {
        const auto* found = std::find_if(named.begin(), named.end(),
                                         [&](const auto& pair) { return name == pair.first; });
        if (found == named.end()) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: {}[{}]: expected {} or {}, found {}", text.place(),
                                    text.name(key), kinds.size(), named.begin()->first,
                                    (named.end() - 1)->first, shown(name)));
        }
        kinds.push_back(found->second);
    }
    return kinds;
}

void read_layers(const JsonObject& text, ModelConfig& config) {
    if (text.has("layer_types")) {
        config.attention =
            layer_kinds<AttentionKind>(text, "layer_types", config.num_layers,
                                       {{"linear_attention", AttentionKind::kda},
                                        {"deepseek_sparse_attention", AttentionKind::mla}});
    } else {
        for (int64_t layer = 0; layer < config.num_layers; ++layer) {
            config.attention.push_back(layer % 4 == 3 ? AttentionKind::mla : AttentionKind::kda);
        }
    }
    if (text.has("mlp_layer_types")) {
        config.ffn = layer_kinds<FfnKind>(text, "mlp_layer_types", config.num_layers,
                                          {{"dense", FfnKind::dense}, {"sparse", FfnKind::moe}});
    } else {
        const int64_t dense = text.integer("first_k_dense_replace", 0, config.num_layers);
        for (int64_t layer = 0; layer < config.num_layers; ++layer) {
            config.ffn.push_back(layer < dense ? FfnKind::dense : FfnKind::moe);
        }
    }
}

// Appends the ids of `object`'s eos_token_id (one or a list) that are not there yet.
void add_eos(const JsonObject& object, int64_t vocab_size, std::vector<int32_t>& ids) {
    const json* found = object.find("eos_token_id");
    if (!found) return;
    std::vector<int64_t> listed;
    if (found->is_array()) {
        listed = object.integers("eos_token_id", 0, vocab_size - 1);
    } else {
        listed = {object.integer("eos_token_id", 0, vocab_size - 1)};
    }
    for (const int64_t id : listed) {
        const auto token = static_cast<int32_t>(id);
        if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    }
}

void read_mla(const JsonObject& text, ModelConfig& config) {
    config.num_heads = text.integer("num_attention_heads", 1, kMaxSize);
    if (text.has("num_key_value_heads") &&
        text.integer("num_key_value_heads", 1, kMaxSize) != config.num_heads) {
        text.fail("num_key_value_heads", fmt::format("{} (num_attention_heads)", config.num_heads));
    }
    config.q_lora_rank = text.integer("q_lora_rank", 1, kMaxSize);
    config.kv_lora_rank = text.integer("kv_lora_rank", 1, kMaxSize);
    config.qk_nope_head_dim = text.integer("qk_nope_head_dim", 1, kMaxSize);
    if (text.has("qk_head_dim") &&
        text.integer("qk_head_dim", 1, kMaxSize) != config.qk_nope_head_dim) {
        text.fail("qk_head_dim", fmt::format("{} (qk_nope_head_dim)", config.qk_nope_head_dim));
    }
    config.v_head_dim = text.integer("v_head_dim", 1, kMaxSize);
    config.index_topk = text.integer("index_topk", 1, INT32_MAX);
    config.index_heads = text.integer("index_n_heads", 1, kMaxSize);
    config.index_head_dim = text.integer("index_head_dim", 1, kMaxSize);
    // No default: published classes say 16 where every released model says 4.
    config.index_kpool = text.integer("index_kpool", 1, 1024);
    if (config.index_topk % config.index_kpool != 0) {
        text.fail("index_topk", fmt::format("a multiple of index_kpool ({})", config.index_kpool));
    }
}

void read_ffn(const JsonObject& text, ModelConfig& config) {
    config.intermediate_size = text.integer("intermediate_size", 1, kMaxSize);
    config.moe_intermediate_size = text.integer("moe_intermediate_size", 1, kMaxSize);
    config.num_experts = text.integer("n_routed_experts", 1, 65536);
    config.experts_per_token = text.integer("num_experts_per_tok", 1, config.num_experts);
    config.num_shared_experts = text.integer("n_shared_experts", 0, 1024);
    config.routed_scaling_factor = text.number("routed_scaling_factor", 1e-6, 1e6);
    config.swiglu_limit = text.number("swiglu_limit", 1e-6, 1e30);
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& folder) {
    const auto file = folder / "config.json";
    const json document = read_json(file, kMaxFile);
    const JsonObject top(document, file.string());
    const JsonObject text = top.has("text_config") ? top.object("text_config") : top;
    check_fixed(top);
    check_fixed(text);
    ModelConfig config;
    config.hidden_size = text.integer("hidden_size", 1, kMaxSize);
    config.vocab_size = text.integer("vocab_size", 1, kMaxToken);
    config.num_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
    if (text.has("num_nextn_predict_layers")) {
        config.num_mtp_layers = text.integer("num_nextn_predict_layers", 0, kMaxLayers);
    }
    read_ffn(text, config);
    read_mla(text, config);
    read_kda(text, config);
    config.hc_mult = text.integer("hc_mult", 1, 64);
    config.hc_sinkhorn_iters = text.integer("hc_sinkhorn_iters", 1, 1000);
    config.hc_eps = text.number("hc_eps", 1e-12, 1.0);
    config.rms_norm_eps = text.number("rms_norm_eps", 1e-12, 1.0);
    config.max_position_embeddings = text.integer("max_position_embeddings", 1, INT32_MAX);
    read_layers(text, config);

    // A record ends at any id that either file lists.
    add_eos(text, config.vocab_size, config.eos_token_ids);
    if (config.eos_token_ids.empty()) add_eos(top, config.vocab_size, config.eos_token_ids);
    const auto generation = folder / "generation_config.json";
    if (std::filesystem::exists(generation)) {
        const json defaults = read_json(generation, kMaxFile);
        add_eos(JsonObject(defaults, generation.string()), config.vocab_size, config.eos_token_ids);
    }
    if (config.eos_token_ids.empty()) text.fail("eos_token_id", "a token id or a list of them");
    return config;
}

}  // namespace quadrille
