// SPDX-License-Identifier: Apache-2.0
// The full model as its official config describes it, and the vendor's drafter, for tests that only
// count.
#pragma once

#include "io/checkpoint/model_config.h"

namespace quadrille::test {

inline ModelConfig full_config() {
    ModelConfig c;
    c.hidden_size = 4096;
    c.vocab_size = 154880;
    c.num_layers = 45;
    c.intermediate_size = 12288;
    c.moe_intermediate_size = 2048;
    c.num_experts = 288;
    c.experts_per_token = 8;
    c.num_shared_experts = 1;
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
    c.hc_mult = 4;
    for (int layer = 0; layer < 45; ++layer) {  // every fourth is MLA, the first three are dense
        c.attention.push_back(layer % 4 == 3 ? AttentionKind::mla : AttentionKind::kda);
        c.ffn.push_back(layer < 3 ? FfnKind::dense : FfnKind::moe);
    }
    return c;
}

inline DraftConfig full_draft_config() {
    DraftConfig c;
    c.hidden_size = 4096;
    c.intermediate_size = 12288;
    c.num_layers = 5;
    c.num_heads = 32;
    c.num_kv_heads = 8;
    c.head_dim = 128;
    c.vocab_size = 154880;
    c.num_target_layers = 45;
    c.sliding.assign(5, true);
    c.sliding_window = 2048;
    c.block_size = 8;
    c.target_layer_ids = {5, 14, 24, 33, 42};
    c.conv_group_size = 16;
    c.conv_kernel_size = 2;
    c.selector_rank = 256;
    c.selector_top_k = 16;
    return c;
}

}  // namespace quadrille::test
