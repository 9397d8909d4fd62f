// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/mla_layer.h"

#include <array>

namespace quadrille {

namespace {
constexpr float kIndexNormEps = 1e-6f;  // the indexer's LayerNorm, not rms_norm_eps
}

MlaScratch::MlaScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
                       int64_t max_rows)
    : query_low(backend, max_rows, config.q_lora_rank),
      query(backend, max_rows, plan.mla_heads.size() * config.qk_nope_head_dim),
      latent(backend, max_rows, config.kv_lora_rank),
      index_key(backend, max_rows, config.index_head_dim),
      index_gate(backend, max_rows, config.index_head_dim),
      index_query(backend, max_rows, config.index_heads * config.index_head_dim),
      index_weight(backend, max_rows, config.index_heads),
      selected(backend, max_rows, config.index_topk + config.index_kpool - 1),
      count(backend, 1, max_rows),
      out(backend, max_rows, plan.mla.range.size()) {}

MlaLayer::MlaLayer(Backend& backend, WeightLoader& loader, const std::string& prefix,
                   const ModelConfig& config, const ShardPlan& plan, int64_t slots,
                   int64_t capacity, int64_t max_block)
    : backend_(backend), norm_eps_(static_cast<float>(config.rms_norm_eps)) {
    const int64_t hidden = config.hidden_size;
    const int64_t rank = config.kv_lora_rank;
    const int64_t heads = config.num_heads;
    const int64_t key_dim = config.qk_nope_head_dim;
    const int64_t value_dim = config.v_head_dim;
    const int64_t index_dim = config.index_head_dim;
    const Range own = plan.mla_heads;
    params_ = {.heads = static_cast<int32_t>(own.size()),
               .key_dim = static_cast<int32_t>(key_dim),
               .value_dim = static_cast<int32_t>(value_dim),
               .latent_dim = static_cast<int32_t>(rank)};
    index_ = {.heads = static_cast<int32_t>(config.index_heads),
              .head_dim = static_cast<int32_t>(index_dim),
              .pool = static_cast<int32_t>(config.index_kpool),
              .topk = static_cast<int32_t>(config.index_topk)};

    q_a_ = loader.matrix(prefix + "q_a_proj", config.q_lora_rank, hidden);
    q_norm_ = loader.vector(prefix + "q_a_layernorm.weight", config.q_lora_rank);
    q_b_ = loader.column_parallel(prefix + "q_b_proj", heads * key_dim, config.q_lora_rank,
                                  {own.begin * key_dim, own.end * key_dim});
    kv_a_ = loader.matrix(prefix + "kv_a_proj_with_mqa", rank, hidden);
    kv_norm_ = loader.vector(prefix + "kv_a_layernorm.weight", rank);
    const int64_t kv_dim = key_dim + value_dim;
    kv_b_ =
        loader.native_matrix(prefix + "kv_b_proj", heads * kv_dim, rank,
                             MatrixSlice::of_rows({{own.begin * kv_dim, own.end * kv_dim}}, rank));
    out_ = loader.row_parallel(prefix + "o_proj", hidden, heads * value_dim, plan.mla);

    const std::string indexer = prefix + "indexer.";
    index_query_ =
        loader.matrix(indexer + "wq_b", config.index_heads * index_dim, config.q_lora_rank);
    index_key_ = loader.matrix(indexer + "wk", index_dim, hidden);
    index_weight_ = loader.matrix(indexer + "weights_proj", config.index_heads, hidden);
    index_gate_ = loader.matrix(indexer + "index_kpool_compress_gate", index_dim, hidden);
    key_norm_ = loader.vector(indexer + "k_norm.weight", index_dim);
    key_norm_bias_ = loader.vector(indexer + "k_norm.bias", index_dim);
    ape_ = loader.joined({indexer + "index_kpool_compress_ape"}, config.index_kpool, index_dim,
                         {{0, config.index_kpool}});

    const int64_t pools = capacity / config.index_kpool;
    ring_size_ = static_cast<int32_t>(config.index_kpool - 1 + max_block);
    latents_ = Array<float>(backend, slots, capacity * rank, Memory::latents);
    pools_ = Array<float>(backend, slots, pools * index_dim, Memory::latents);
    ring_ = Array<float>(backend, slots, ring_size_ * 2 * index_dim, Memory::latents);
}

void MlaLayer::forward(View<float> partial, View<const float> in, const Rows& rows,
                       MlaScratch& scratch) const {
    const int64_t m = in.rows;
    const IndexCache cache = {
        .pools = pools_.view(), .ring = ring_.view(), .ring_size = ring_size_};
    const View<float> query_low = scratch.query_low.first(m);
    const View<float> latent = scratch.latent.first(m);
    const View<float> key = scratch.index_key.first(m);
    const std::array<Product, 5> from_input = {
        {{query_low, in, q_a_},
         {latent, in, kv_a_},
         {key, in, index_key_},
         {scratch.index_gate.first(m), in, index_gate_},
         {scratch.index_weight.first(m), in, index_weight_}}};
    backend_.linears(from_input);
    backend_.rms_norm(query_low, query_low, q_norm_, norm_eps_);
    const std::array<Product, 2> queries = {
        {{scratch.query.first(m), query_low, q_b_},
         {scratch.index_query.first(m), query_low, index_query_}}};
    backend_.linears(queries);

    backend_.rms_norm(latent, latent, kv_norm_, norm_eps_);
    backend_.latent_append(latents_.view(), latent, rows);
    backend_.layer_norm(key, key, key_norm_, key_norm_bias_, kIndexNormEps);
    backend_.index_pool(cache, key, scratch.index_gate.first(m), ape_, index_, rows);
    backend_.index_select(scratch.selected.first(m), scratch.count.data(),
                          scratch.index_query.first(m), scratch.index_weight.first(m), cache,
                          index_, rows);
    backend_.mla_attention(scratch.out.first(m), scratch.query.first(m), kv_b_, latents_.view(),
                           scratch.selected.first(m), scratch.count.data(), params_, rows);
    backend_.linear(partial, scratch.out.first(m), out_);
}

std::vector<float> MlaLayer::download_state(int32_t slot, int64_t length) const {
    const int64_t latents = length * params_.latent_dim;
    const int64_t pools = length / index_.pool * index_.head_dim;
    std::vector<float> values(static_cast<size_t>(latents + pools));
    backend_.download(values.data(), latents_.view().row(slot), latents * 4);
    backend_.download(values.data() + latents, pools_.view().row(slot), pools * 4);
    return values;
}

}  // namespace quadrille
