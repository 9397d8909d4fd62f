// SPDX-License-Identifier: Apache-2.0
// The MLA sublayer (no rotary part) with its indexer: low-rank query, latent cache, pools and
// selection, absorbed attention, output projection. Latents, pools and the indexer are replicated
// on every rank; heads are split.
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/shard.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct MlaScratch {
    MlaScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
               int64_t max_rows);
    Array<float> query_low;              // (rows, q_lora_rank)
    Array<float> query;                  // (rows, heads * qk_nope_head_dim)
    Array<float> latent;                 // (rows, kv_lora_rank)
    Array<float> index_key, index_gate;  // (rows, index_head_dim)
    Array<float> index_query;            // (rows, index_heads * index_head_dim)
    Array<float> index_weight;           // (rows, index_heads)
    Array<int32_t> selected;             // (rows, index_topk + index_kpool - 1)
    Array<int32_t> count;                // (1, rows)
    Array<float> out;                    // (rows, heads * v_head_dim)
};

class MlaLayer {
  public:
    // `capacity` tokens per slot; `max_block`: rows of the longest decode block.
    MlaLayer(Backend& backend, WeightLoader& loader, const std::string& prefix,
             const ModelConfig& config, const ShardPlan& plan, int64_t slots, int64_t capacity,
             int64_t max_block);

    // partial (m, hidden): this rank's share of o_proj; in (m, hidden) normed.
    void forward(View<float> partial, View<const float> in, const Rows& rows,
                 MlaScratch& scratch) const;

    // Latents and whole pools of the first `length` tokens of a slot, for comparison.
    std::vector<float> download_state(int32_t slot, int64_t length) const;

  private:
    Backend& backend_;
    float norm_eps_;
    MlaParams params_;
    IndexParams index_;
    Matrix q_a_, q_b_, kv_a_, kv_b_, out_;
    Matrix index_query_, index_key_, index_gate_, index_weight_;
    const float* q_norm_;
    const float* kv_norm_;
    const float* key_norm_;
    const float* key_norm_bias_;
    const float* ape_;
    Array<float> latents_, pools_, ring_;
    int32_t ring_size_;
};

}  // namespace quadrille
