// SPDX-License-Identifier: Apache-2.0
// config.json of a DFlash or DFlash2 drafter. Fields that name a variant of the architecture which
// is not implemented (mask row, logit scale, other projectors…) are refused, not passed over.
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
constexpr int64_t kMaxSize = 1 << 22;

void refuse(const JsonObject& object, const char* key, const json& only) {
    const json* found = object.find(key);
    if (found && *found != only) object.fail(key, shown(only) + " (no other is supported)");
}

void check_fixed(const JsonObject& top, const JsonObject& dflash) {
    refuse(top, "hidden_act", "silu");
    refuse(top, "attention_bias", false);
    refuse(top, "mlp_bias", false);
    refuse(top, "tie_word_embeddings", false);
    for (const JsonObject& object : {top, dflash}) {
        refuse(object, "input_embedding_scale", 1.0);
        refuse(object, "output_multiplier", 1.0);
        refuse(object, "final_logit_softcapping", nullptr);
        refuse(object, "projector_type", nullptr);
        refuse(object, "draft_vocab_size",
               top.find("vocab_size") ? *top.find("vocab_size") : json());
    }
}

// rope_theta, at the top or in rope_parameters; only the plain rotation is known.
double read_rope_theta(const JsonObject& top) {
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        if (!top.has(key)) continue;
        const JsonObject rope = top.object(key);
        refuse(rope, "rope_type", "default");
        refuse(rope, "type", "default");
        refuse(rope, "partial_rotary_factor", 1.0);
    }
    refuse(top, "partial_rotary_factor", 1.0);
    const bool nested =
        top.has("rope_parameters") && top.object("rope_parameters").has("rope_theta");
    const JsonObject holder = nested ? top.object("rope_parameters") : top;
    const double theta = holder.number("rope_theta", 1.0, 1e12);
    if (nested && top.has("rope_theta") && top.number("rope_theta", 1.0, 1e12) != theta) {
        top.fail("rope_theta", fmt::format("{} (rope_parameters.rope_theta)", theta));
    }
    return theta;
}

// Which layers slide; layer_types, or Qwen3's use_sliding_window and max_window_layers.
void read_attention(const JsonObject& top, DraftConfig& config) {
    if (top.has("layer_types")) {
        for (const std::string& type : top.strings("layer_types")) {
            if (type != "sliding_attention" && type != "full_attention") {
                top.fail("layer_types", "sliding_attention or full_attention in every entry");
            }
            config.sliding.push_back(type == "sliding_attention");
        }
        if (std::ssize(config.sliding) != config.num_layers) {
            top.fail("layer_types",
                     fmt::format("{} entries (num_hidden_layers)", config.num_layers));
        }
    } else {
        const bool slides = top.has("use_sliding_window") && top.boolean("use_sliding_window");
        const int64_t first = slides && top.has("max_window_layers")
                                  ? top.integer("max_window_layers", 0, INT32_MAX)
                                  : 0;
        for (int64_t layer = 0; layer < config.num_layers; ++layer) {
            config.sliding.push_back(slides && layer >= first);
        }
    }
    if (std::find(config.sliding.begin(), config.sliding.end(), true) != config.sliding.end()) {
        config.sliding_window = top.integer("sliding_window", 1, INT32_MAX);
    }
}

// Stated, or by the convention of the first drafters: sliding layers causal, full ones not.
bool read_causal(const JsonObject& top, const JsonObject& dflash, const DraftConfig& config) {
    if (top.has("is_causal")) return top.boolean("is_causal");
    if (dflash.has("causal")) return dflash.boolean("causal");
    const bool first = config.sliding.front();
    for (const bool sliding : config.sliding) {
        if (sliding != first) top.fail("is_causal", "true or false (layer_types are mixed)");
    }
    return first;
}

// A field that stands at the top or in dflash_config, or in both with the same value.
int64_t read_either(const JsonObject& top, const JsonObject& dflash, const char* key, int64_t low,
                    int64_t high) {
    if (!top.has(key)) return dflash.integer(key, low, high);
    const int64_t value = top.integer(key, low, high);
    if (dflash.has(key) && dflash.integer(key, low, high) != value) {
        dflash.fail(key, fmt::format("{} ({})", value, top.name(key)));
    }
    return value;
}

// The fields DFlash2 adds; all absent in a DFlash v1 drafter.
void read_second(const JsonObject& dflash, DraftConfig& config) {
    if (dflash.has("conv_group_size") || dflash.has("conv_kernel_size")) {
        config.conv_group_size = dflash.integer("conv_group_size", 1, config.hidden_size);
        config.conv_kernel_size = dflash.integer("conv_kernel_size", 1, 64);
        if (config.hidden_size % config.conv_group_size != 0) {
            dflash.fail("conv_group_size",
                        fmt::format("a divisor of hidden_size ({})", config.hidden_size));
        }
    }
    if (dflash.has("selector_rank") || dflash.has("selector_top_k")) {
        config.selector_rank = dflash.integer("selector_rank", 1, kMaxSize);
        config.selector_top_k =
            dflash.integer("selector_top_k", 1, std::min<int64_t>(config.vocab_size, 1024));
    }
}

void read_taps(const JsonObject& dflash, DraftConfig& config) {
    config.target_layer_ids = dflash.integers("target_layer_ids", 0, config.num_target_layers - 1);
    const auto& taps = config.target_layer_ids;
    // Features are concatenated in this order; a repeated or unsorted list is a conversion error.
    if (taps.empty() ||
        std::adjacent_find(taps.begin(), taps.end(), std::greater_equal<>()) != taps.end()) {
        dflash.fail("target_layer_ids", "layer numbers in ascending order");
    }
}

}  // namespace

DrafterKind read_drafter_kind(const std::filesystem::path& folder) {
    const auto file = folder / "config.json";
    const json document = read_json(file, kMaxFile);
    const JsonObject top(document, file.string());
    if (!top.has("dflash_config")) {
        top.fail("dflash_config", "the fields of a DFlash or DFlash2 drafter");
    }
    return DrafterKind::dflash;
}

DraftConfig read_draft_config(const std::filesystem::path& folder) {
    const auto file = folder / "config.json";
    const json document = read_json(file, kMaxFile);
    const JsonObject top(document, file.string());
    const JsonObject dflash = top.object("dflash_config");
    check_fixed(top, dflash);
    if (std::filesystem::exists(folder / "mask_embedding.pt")) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: a learned mask row is not supported, only mask_token_id",
                                (folder / "mask_embedding.pt").string()));
    }
    DraftConfig config;
    config.hidden_size = top.integer("hidden_size", 1, kMaxSize);
    config.intermediate_size = top.integer("intermediate_size", 1, kMaxSize);
    config.num_layers = top.integer("num_hidden_layers", 1, 4096);
    config.num_heads = top.integer("num_attention_heads", 1, kMaxSize);
    config.num_kv_heads = top.integer("num_key_value_heads", 1, config.num_heads);
    if (config.num_heads % config.num_kv_heads != 0) {
        top.fail("num_key_value_heads",
                 fmt::format("a divisor of num_attention_heads ({})", config.num_heads));
    }
    config.head_dim = top.integer("head_dim", 2, 65536);
    if (config.head_dim % 2 != 0) top.fail("head_dim", "an even number (rotary halves)");
    config.vocab_size = top.integer("vocab_size", 1, INT32_MAX);
    config.num_target_layers = top.integer("num_target_layers", 1, 4096);
    config.rms_norm_eps = top.number("rms_norm_eps", 1e-12, 1.0);
    config.rope_theta = read_rope_theta(top);
    read_attention(top, config);
    config.is_causal = read_causal(top, dflash, config);
    config.block_size = read_either(top, dflash, "block_size", 2, 1024);
    config.mask_token_id = read_either(top, dflash, "mask_token_id", 0, config.vocab_size - 1);
    read_taps(dflash, config);
    read_second(dflash, config);
    return config;
}

}  // namespace quadrille
