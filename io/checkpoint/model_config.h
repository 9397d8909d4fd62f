// SPDX-License-Identifier: Apache-2.0
// config.json of a GLM-5.3-Flash target and of a DFlash / DFlash2 drafter. Both KDA naming styles
// (linear_attn_config, flat linear_*) are read; missing or impossible values are errors that name
// the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace quadrille {

enum class AttentionKind : uint8_t { kda, mla };
enum class FfnKind : uint8_t { dense, moe };

struct ModelConfig {
    int64_t hidden_size = 0;
    int64_t vocab_size = 0;
    int64_t num_layers = 0;
    int64_t num_mtp_layers = 0;  // num_nextn_predict_layers; their tensors are skipped and counted
    int64_t intermediate_size = 0;
    int64_t moe_intermediate_size = 0;
    int64_t num_experts = 0;
    int64_t experts_per_token = 0;
    int64_t num_shared_experts = 0;
    double routed_scaling_factor = 1.0;
    double swiglu_limit = 0.0;
    int64_t num_heads = 0;  // MLA
    int64_t q_lora_rank = 0;
    int64_t kv_lora_rank = 0;
    int64_t qk_nope_head_dim = 0;
    int64_t v_head_dim = 0;
    int64_t index_topk = 0;
    int64_t index_heads = 0;
    int64_t index_head_dim = 0;
    int64_t index_kpool = 0;
    int64_t linear_heads = 0;  // KDA
    int64_t linear_head_dim = 0;
    int64_t linear_conv_kernel = 0;
    double linear_lower_bound = 0.0;
    int64_t hc_mult = 0;
    int64_t hc_sinkhorn_iters = 0;
    double hc_eps = 0.0;
    double rms_norm_eps = 0.0;
    int64_t max_position_embeddings = 0;
    std::vector<int32_t> eos_token_ids;
    std::vector<AttentionKind> attention;  // (num_layers)
    std::vector<FfnKind> ffn;              // (num_layers)
};

struct DraftConfig {
    int64_t hidden_size = 0;
    int64_t intermediate_size = 0;
    int64_t num_layers = 0;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t vocab_size = 0;
    int64_t num_target_layers = 0;
    double rms_norm_eps = 0.0;
    double rope_theta = 0.0;
    std::vector<bool> sliding;  // (num_layers) sliding-window attention
    int64_t sliding_window = 0;
    bool is_causal = false;
    int64_t block_size = 0;
    int64_t mask_token_id = 0;
    std::vector<int64_t> target_layer_ids;  // taps
    // DFlash2; all 0 for a DFlash v1 drafter.
    int64_t conv_group_size = 0;
    int64_t conv_kernel_size = 0;
    int64_t selector_rank = 0;
    int64_t selector_top_k = 0;
};

enum class DrafterKind : uint8_t { dflash };  // DFlash v1 and DFlash2

// Read FOLDER/config.json. Errors: Error{input} naming file, field, expected and found.
ModelConfig read_model_config(const std::filesystem::path& folder);
DrafterKind read_drafter_kind(const std::filesystem::path& folder);
DraftConfig read_draft_config(const std::filesystem::path& folder);

}  // namespace quadrille
