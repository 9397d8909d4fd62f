// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/made_model.h"

#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace quadrille {

namespace {

constexpr const char* kPrefix = "model.language_model.";
constexpr int64_t kSmall = int64_t{1} << 20;  // elements: up to here a tensor of noise has bytes
constexpr int64_t kLayers = 45;
constexpr int64_t kDenseLayers = 3;

// Names, shapes and small values of a checkpoint under construction.
class Maker {
  public:
    explicit Maker(int32_t dense_bits) : dense_bits_(dense_bits) {
        noise_ = stored(made_values(Dtype::bf16, 2 * kSmall));
        marker_ = stored(std::vector<uint32_t>{exl3::kMcgMultiplier});
        // Scales that keep sums of random weights near one.
        in_ = stored(std::vector<F16>(kWidest, to_f16(1.0f)));
        out_ = stored(std::vector<F16>(kWidest, to_f16(0.02f)));
    }

    void noise(const std::string& name, std::vector<int64_t> shape) {
        Tensor tensor{.name = name, .dtype = Dtype::bf16, .shape = std::move(shape)};
        const int64_t count = tensor.elements();
        if (count <= kSmall) {
            tensor.bytes = noise_.subspan(static_cast<size_t>(next_ % kSmall * 2),
                                          static_cast<size_t>(count * 2));
            next_ += 12345;
        }
        tensors_.push_back(std::move(tensor));
    }
    void values(const std::string& name, const std::vector<float>& values,
                std::vector<int64_t> shape = {}) {
        if (shape.empty()) shape = {std::ssize(values)};
        tensors_.push_back({.name = name,
                            .dtype = Dtype::f32,
                            .shape = std::move(shape),
                            .bytes = stored(values)});
    }
    void constant(const std::string& name, int64_t count, float value) {
        values(name, std::vector<float>(static_cast<size_t>(count), value));
    }
    void matrix(const std::string& module, int64_t n, int64_t k) {
        noise(tensor_name(module, TensorPart::weight), {n, k});
    }
    // As the dense bits say.
    void dense(const std::string& module, int64_t n, int64_t k) {
        if (dense_bits_ == 0) return matrix(module, n, k);
        exl3(module, n, k, dense_bits_);
    }
    void exl3(const std::string& module, int64_t n, int64_t k, int32_t bits) {
        const int64_t n_padded = exl3::padded(n);
        const int64_t k_padded = exl3::padded(k);
        const auto add = [&](TensorPart part, Dtype dtype, std::vector<int64_t> shape,
                             std::span<const std::byte> bytes) {
            tensors_.push_back({.name = tensor_name(module, part),
                                .dtype = dtype,
                                .shape = std::move(shape),
                                .bytes = bytes});
        };
        add(TensorPart::trellis, Dtype::i16,
            {k_padded / exl3::kTile, n_padded / exl3::kTile, exl3::kTile * bits}, {});
        add(TensorPart::suh, Dtype::f16, {k_padded},
            in_.first(static_cast<size_t>(k_padded) * sizeof(F16)));
        add(TensorPart::svh, Dtype::f16, {n_padded},
            out_.first(static_cast<size_t>(n_padded) * sizeof(F16)));
        add(TensorPart::mcg, Dtype::i32, {}, marker_);
    }
    void mlp(const std::string& p, int64_t hidden, int64_t width) {
        dense(p + "gate_proj", width, hidden);
        dense(p + "up_proj", width, hidden);
        dense(p + "down_proj", hidden, width);
    }

    Checkpoint finish(const std::string& title) {
        return {title, std::move(tensors_), std::move(data_)};
    }

  private:
    static constexpr size_t kWidest = size_t{1} << 18;  // channels of a matrix

    template <class T>
    std::span<const std::byte> stored(const std::vector<T>& values) {
        const auto bytes = std::as_bytes(std::span(values));
        return data_.emplace_back(bytes.begin(), bytes.end());
    }

    int32_t dense_bits_;
    std::vector<Tensor> tensors_;
    std::vector<std::vector<std::byte>> data_;  // whose elements keep their place when it grows
    std::span<const std::byte> noise_, marker_, in_, out_;
    int64_t next_ = 0;
};

ModelConfig glm_config(int64_t layers) {
    ModelConfig c;
    c.hidden_size = 4096;
    c.vocab_size = 154880;
    c.num_layers = layers;
    c.intermediate_size = 12288;
    c.moe_intermediate_size = 2048;
    c.num_experts = 288;
    c.experts_per_token = 8;
    c.num_shared_experts = 1;
    c.routed_scaling_factor = 2.5;
    c.swiglu_limit = 10.0;
    c.num_heads = 64;
    c.q_lora_rank = 1536;
    c.kv_lora_rank = 512;
    c.qk_nope_head_dim = 256;
    c.v_head_dim = 256;
    c.index_topk = 2048;
    c.index_heads = 32;
    c.index_head_dim = 128;
    c.index_kpool = 4;
    c.linear_heads = 64;
    c.linear_head_dim = 128;
    c.linear_conv_kernel = 4;
    c.linear_lower_bound = -5.0;
    c.hc_mult = 4;
    c.hc_sinkhorn_iters = 20;
    c.hc_eps = 1e-6;
    c.rms_norm_eps = 1e-5;
    c.max_position_embeddings = 1048576;
    c.eos_token_ids = {154820, 154827, 154829};
    for (int64_t layer = 0; layer < layers; ++layer) {
        c.attention.push_back(layer % 4 == 3 ? AttentionKind::mla : AttentionKind::kda);
        c.ffn.push_back(layer < kDenseLayers ? FfnKind::dense : FfnKind::moe);
    }
    return c;
}

void add_kda(Maker& maker, const ModelConfig& c, const std::string& p) {
    const int64_t width = c.linear_heads * c.linear_head_dim;
    for (const char* part : {"q", "k", "v"}) {
        maker.dense(fmt::format("{}{}_proj", p, part), width, c.hidden_size);
        maker.noise(fmt::format("{}{}_conv1d.weight", p, part), {width, 1, c.linear_conv_kernel});
    }
    for (const char* gate : {"f", "g"}) {
        maker.matrix(fmt::format("{}{}_a_proj", p, gate), c.linear_head_dim, c.hidden_size);
        maker.matrix(fmt::format("{}{}_b_proj", p, gate), width, c.linear_head_dim);
    }
    maker.matrix(p + "b_proj", c.linear_heads, c.hidden_size);
    maker.dense(p + "o_proj", c.hidden_size, width);
    maker.constant(p + "A_log", c.linear_heads, 0.0f);
    maker.constant(p + "dt_bias", width, 0.0f);
    maker.constant(p + "o_norm.weight", c.linear_head_dim, 1.0f);
}

void add_mla(Maker& maker, const ModelConfig& c, const std::string& p) {
    const int64_t h = c.hidden_size;
    const int64_t d = c.index_head_dim;
    maker.dense(p + "q_a_proj", c.q_lora_rank, h);
    maker.dense(p + "q_b_proj", c.num_heads * c.qk_nope_head_dim, c.q_lora_rank);
    maker.dense(p + "kv_a_proj_with_mqa", c.kv_lora_rank, h);
    maker.matrix(p + "kv_b_proj", c.num_heads * (c.qk_nope_head_dim + c.v_head_dim),
                 c.kv_lora_rank);
    maker.dense(p + "o_proj", h, c.num_heads * c.v_head_dim);
    maker.constant(p + "q_a_layernorm.weight", c.q_lora_rank, 1.0f);
    maker.constant(p + "kv_a_layernorm.weight", c.kv_lora_rank, 1.0f);
    maker.matrix(p + "indexer.wq_b", c.index_heads * d, c.q_lora_rank);
    maker.matrix(p + "indexer.wk", d, h);
    maker.matrix(p + "indexer.weights_proj", c.index_heads, h);
    maker.noise(p + "indexer.index_kpool_compress_ape", {c.index_kpool, d});
    maker.noise(p + "indexer.index_kpool_compress_gate", {d, h});
    maker.constant(p + "indexer.k_norm.weight", d, 1.0f);
    maker.noise(p + "indexer.k_norm.bias", {d});
}

// A bias that no score reaches chooses half of a row's experts, others in every layer.
std::vector<float> router_bias(const ModelConfig& c, MadeRouting routing, int64_t layer) {
    std::vector<float> bias(static_cast<size_t>(c.num_experts), 0.0f);
    if (routing == MadeRouting::uniform) return bias;
    for (int64_t i = 0; i < c.experts_per_token / 2; ++i) {
        bias[static_cast<size_t>((layer * 31 + i * 71) % c.num_experts)] = 10.0f;
    }
    return bias;
}

void add_layer(Maker& maker, const ModelConfig& c, const MadeChoice& choice, int64_t layer) {
    const std::string p = fmt::format("{}layers.{}.", kPrefix, layer);
    const int64_t h = c.hidden_size;
    const int64_t gates = (2 + c.hc_mult) * c.hc_mult;
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
        maker.constant(p + norm + ".weight", h, 1.0f);
    }
    for (const char* site : {"attn", "ffn"}) {
        maker.noise(fmt::format("{}hc_{}_fn", p, site), {gates, c.hc_mult * h});
        maker.constant(fmt::format("{}hc_{}_base", p, site), gates, 0.0f);
        maker.constant(fmt::format("{}hc_{}_scale", p, site), 3, 0.1f);
    }
    const auto at = static_cast<size_t>(layer);
    if (c.attention[at] == AttentionKind::kda) {
        add_kda(maker, c, p + "self_attn.");
    } else {
        add_mla(maker, c, p + "self_attn.");
    }
    const std::string m = p + "mlp.";
    if (c.ffn[at] == FfnKind::dense) return maker.mlp(m, h, c.intermediate_size);
    maker.matrix(m + "gate", c.num_experts, h);
    maker.values(m + "gate.e_score_correction_bias", router_bias(c, choice.routing, layer));
    for (int64_t e = 0; e < c.num_experts; ++e) {
        const std::string expert = fmt::format("{}experts.{}.", m, e);
        maker.exl3(expert + "gate_proj", c.moe_intermediate_size, h, choice.routed_bits);
        maker.exl3(expert + "up_proj", c.moe_intermediate_size, h, choice.routed_bits);
        maker.exl3(expert + "down_proj", h, c.moe_intermediate_size, choice.routed_bits);
    }
    maker.mlp(m + "shared_experts.", h, c.moe_intermediate_size * c.num_shared_experts);
}

DraftConfig drafter_config(int64_t layers) {
    DraftConfig c;
    c.hidden_size = 4096;
    c.intermediate_size = 12288;
    c.num_layers = 5;
    c.num_heads = 32;
    c.num_kv_heads = 8;
    c.head_dim = 128;
    c.vocab_size = 154880;
    c.num_target_layers = layers;
    c.rms_norm_eps = 1e-5;
    c.rope_theta = 10000.0;
    c.sliding.assign(5, true);
    c.sliding_window = 2048;
    c.block_size = 8;
    c.mask_token_id = 154856;
    // The released ones, at the same places of fewer layers.
    for (const int64_t tap : {5, 14, 24, 33, 42}) {
        c.target_layer_ids.push_back(tap * layers / kLayers);
    }
    c.conv_group_size = 16;
    c.conv_kernel_size = 2;
    c.selector_rank = 256;
    c.selector_top_k = 16;
    return c;
}

void add_draft_layer(Maker& maker, const DraftConfig& c, int64_t layer) {
    const std::string p = fmt::format("layers.{}.", layer);
    const int64_t h = c.hidden_size;
    for (const char* conv : {"attention_conv.", "mlp_conv."}) {
        maker.noise(p + conv + "base_kernel", {2, c.conv_kernel_size, h});
        maker.matrix(p + conv + "kernel_projection", 2 * c.conv_kernel_size * h / c.conv_group_size,
                     h);
    }
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
        maker.constant(p + norm + ".weight", h, 1.0f);
    }
    maker.mlp(p + "mlp.", h, c.intermediate_size);
    const std::string a = p + "self_attn.";
    for (const char* norm : {"q_norm", "k_norm"})
        maker.constant(a + norm + ".weight", c.head_dim, 1.0f);
    maker.matrix(a + "q_proj", c.num_heads * c.head_dim, h);
    maker.matrix(a + "k_proj", c.num_kv_heads * c.head_dim, h);
    maker.matrix(a + "v_proj", c.num_kv_heads * c.head_dim, h);
    maker.matrix(a + "o_proj", h, c.num_heads * c.head_dim);
}

}  // namespace

MadeTarget make_glm_target(const MadeChoice& choice) {
    require(choice.layers > 0, "a made model of one layer at least");
    ModelConfig config = glm_config(choice.layers);
    Maker maker(choice.dense_bits);
    maker.matrix(std::string(kPrefix) + "embed_tokens", config.vocab_size, config.hidden_size);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
        add_layer(maker, config, choice, layer);
    }
    maker.constant(std::string(kPrefix) + "norm.weight", config.hidden_size, 1.0f);
    maker.dense("lm_head", config.vocab_size, config.hidden_size);
    return {std::move(config), maker.finish("made glm-5.3-flash")};
}

MadeDrafter make_glm_drafter(int64_t layers) {
    DraftConfig config = drafter_config(layers);
    require(layers >= std::ssize(config.target_layer_ids), "a drafter's layers to read differ");
    Maker maker(0);
    const int64_t h = config.hidden_size;
    maker.matrix("candidate_selector.hidden_projection", config.selector_rank, h);
    for (const char* side : {"predecessor", "successor"}) {
        maker.noise(fmt::format("candidate_selector.{}_codebook", side),
                    {config.vocab_size, config.selector_rank});
    }
    maker.matrix("fc", h, std::ssize(config.target_layer_ids) * h);
    for (const char* norm : {"hidden_norm", "norm"}) {
        maker.constant(fmt::format("{}.weight", norm), h, 1.0f);
    }
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
        add_draft_layer(maker, config, layer);
    }
    return {std::move(config), maker.finish("made drafter of glm-5.3-flash")};
}

std::vector<uint16_t> made_values(Dtype dtype, int64_t count) {
    // Uniform numbers have this standard deviation between these limits.
    const float limit = 0.02f * std::sqrt(3.0f);
    std::vector<uint16_t> values(static_cast<size_t>(count));
    uint64_t state = 1;
    for (uint16_t& value : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
        if (dtype != Dtype::bf16) {
            value = static_cast<uint16_t>(state >> 48);
            continue;
        }
        const auto number = static_cast<float>(static_cast<int32_t>(state >> 32));
        value = to_bf16(number * (limit / 2147483648.0f)).bits;
    }
    return values;
}

}  // namespace quadrille
