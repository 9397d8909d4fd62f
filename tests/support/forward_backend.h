// SPDX-License-Identifier: Apache-2.0
// A backend that passes everything on to another one, for tests to break or to watch one op.
#pragma once

#include "kernels/backend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace quadrille::test {

class ForwardBackend : public Backend {
  public:
    explicit ForwardBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
    Backend& inner() { return *inner_; }

    std::string name() const override { return inner_->name(); }
    std::string device() const override { return inner_->device(); }
    std::vector<std::string> libraries() const override { return inner_->libraries(); }
    bool on_host() const override { return inner_->on_host(); }

    void* allocate(int64_t bytes) override { return inner().allocate(bytes); }
    void release(void* pointer) noexcept override { inner().release(pointer); }
    void* allocate_host(int64_t bytes) override { return inner().allocate_host(bytes); }
    void release_host(void* pointer) noexcept override { inner().release_host(pointer); }
    void upload(void* to, const void* host, int64_t bytes) override {
        inner().upload(to, host, bytes);
    }
    void download(void* host, const void* from, int64_t bytes) override {
        inner().download(host, from, bytes);
    }
    void copy(void* to, const void* from, int64_t bytes) override { inner().copy(to, from, bytes); }
    void fill_zero(void* to, int64_t bytes) override { inner().fill_zero(to, bytes); }
    void synchronize() override { inner().synchronize(); }

    void embed(View<float> out, const int32_t* tokens, const Matrix& table,
               int32_t copies) override {
        inner().embed(out, tokens, table, copies);
    }
    void rms_norm(View<float> out, View<const float> in, const float* weight, float eps) override {
        inner().rms_norm(out, in, weight, eps);
    }
    void layer_norm(View<float> out, View<const float> in, const float* weight, const float* bias,
                    float eps) override {
        inner().layer_norm(out, in, weight, bias, eps);
    }
    void linear(View<float> out, View<const float> in, const Matrix& weight) override {
        inner().linear(out, in, weight);
    }
    void swiglu(View<float> out, View<const float> gate, View<const float> up,
                float limit) override {
        inner().swiglu(out, gate, up, limit);
    }
    void add(View<float> out, View<const float> in) override { inner().add(out, in); }
    void tree_sum(View<float> out, const float* parts, int32_t count,
                  int64_t part_stride) override {
        inner().tree_sum(out, parts, count, part_stride);
    }
    void copy_rows(View<float> out, View<const float> in, const int32_t* index) override {
        inner().copy_rows(out, in, index);
    }
    void hyper_weights(View<float> pre, View<float> post, View<float> mix,
                       View<const float> streams, const Matrix& fn, const float* base,
                       const float* scale, const HyperParams& params) override {
        inner().hyper_weights(pre, post, mix, streams, fn, base, scale, params);
    }
    void hyper_in(View<float> out, View<const float> streams, View<const float> pre) override {
        inner().hyper_in(out, streams, pre);
    }
    void hyper_out(View<float> streams, View<const float> y, View<const float> post,
                   View<const float> mix) override {
        inner().hyper_out(streams, y, post, mix);
    }
    void stream_mean(View<float> out, View<const float> streams, int32_t streams_count) override {
        inner().stream_mean(out, streams, streams_count);
    }
    void kda(View<float> out, View<const float> qkv, View<const float> f, View<const float> b,
             View<const float> g, const KdaWeights& weights, const KdaState& state,
             const KdaParams& params, const Rows& rows) override {
        inner().kda(out, qkv, f, b, g, weights, state, params, rows);
    }
    void kda_flush(const KdaWeights& weights, const KdaState& state, const KdaParams& params,
                   int32_t slot, int32_t pending, bool fresh) override {
        inner().kda_flush(weights, state, params, slot, pending, fresh);
    }
    void latent_append(View<float> latents, View<const float> latent, const Rows& rows) override {
        inner().latent_append(latents, latent, rows);
    }
    void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                    const float* ape, const IndexParams& params, const Rows& rows) override {
        inner().index_pool(cache, key, gate, ape, params, rows);
    }
    void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                      View<const float> weight, const IndexCache& cache, const IndexParams& params,
                      const Rows& rows) override {
        inner().index_select(selected, count, query, weight, cache, params, rows);
    }
    void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                       View<const float> latents, View<const int32_t> selected,
                       const int32_t* count, const MlaParams& params, const Rows& rows) override {
        inner().mla_attention(out, query, kv_b, latents, selected, count, params, rows);
    }
    void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
               float scale, const Rows& rows) override {
        inner().route(ids, weights, logits, bias, scale, rows);
    }
    void moe(View<float> out, View<const float> in, View<const int32_t> ids,
             View<const float> weights, const MoeWeights& experts) override {
        inner().moe(out, in, ids, weights, experts);
    }
    void argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                int32_t valid) override {
        inner().argmax(value, id, logits, first_id, valid);
    }
    void top_k(View<float> values, View<int32_t> ids, View<const float> logits, int32_t first_id,
               int32_t valid) override {
        inner().top_k(values, ids, logits, first_id, valid);
    }
    void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                     const int32_t* part_ids, int32_t count, int64_t part_stride) override {
        inner().merge_top_k(values, ids, part_values, part_ids, count, part_stride);
    }
    void mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                   int32_t count) override {
        inner().mark_seen(seen, slots, tokens, count);
    }
    void sample(double* score, int32_t* id, float* logit, View<const float> logits,
                const SampleRow* rows, int32_t count, View<const int32_t> excluded,
                int32_t first_id, int32_t valid) override {
        inner().sample(score, id, logit, logits, rows, count, excluded, first_id, valid);
    }
    void sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                           View<const float> logits, const SampleRow* rows, int32_t count,
                           int32_t first_id, int32_t valid) override {
        inner().sample_candidates(values, raw, ids, logits, rows, count, first_id, valid);
    }
    void sample_sum(ExpSum* sums, View<const float> logits, const SampleRow* rows, int32_t count,
                    int32_t first_id, int32_t valid) override {
        inner().sample_sum(sums, logits, rows, count, first_id, valid);
    }
    void sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                   View<const float> logits, const SampleRow* rows, int32_t count, int32_t first_id,
                   int32_t valid) override {
        inner().sample_at(values, raw, ids, logits, rows, count, first_id, valid);
    }
    void block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                      const Rows& rows) override {
        inner().block_tokens(tokens, anchor, path, rows);
    }
    void mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                       const Rows& rows) override {
        inner().mark_accepted(write, tokens, target, rows);
    }
    void merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                       int32_t count, int64_t part_bytes) override {
        inner().merge_samples(id, scores, ids, m, count, part_bytes);
    }
    void draft_append(const DraftCache& cache, View<const float> key, View<const float> value,
                      const float* k_norm, const uint8_t* write, const DraftAttentionParams& params,
                      const Rows& rows) override {
        inner().draft_append(cache, key, value, k_norm, write, params, rows);
    }
    void draft_attention(View<float> out, View<const float> query, View<const float> key,
                         View<const float> value, const float* q_norm, const float* k_norm,
                         const DraftCache& cache, const DraftAttentionParams& params,
                         const Rows& rows) override {
        inner().draft_attention(out, query, key, value, q_norm, k_norm, cache, params, rows);
    }
    void draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                    const float* base, int32_t taps, int32_t group, int32_t block) override {
        inner().draft_conv(out, in, dynamic, base, taps, group, block);
    }
    void walk_path(View<int32_t> path, View<float> scores, View<const float> values,
                   View<const int32_t> ids, View<const float> projected, const Matrix& predecessor,
                   const Matrix& successor, const int32_t* anchor,
                   const SampleRow* draws) override {
        inner().walk_path(path, scores, values, ids, projected, predecessor, successor, anchor,
                          draws);
    }

  private:
    std::unique_ptr<Backend> inner_;
};

}  // namespace quadrille::test
