// SPDX-License-Identifier: Apache-2.0
// CheckBackend: a backend that runs another one and lets the CPU judge every op. Both start from
// the same bits: the working backend's memory and its mirror are equal between ops, so an error is
// found in the op that makes it and never grows. For finding faults, not for speed.
#pragma once

#include "kernels/backend.h"
#include "kernels/check/mirror.h"

#include <cstdint>
#include <memory>
#include <string>

namespace quadrille::check {

class OpCall;

class CheckBackend final : public Backend {
  public:
    // `reference` works on host memory. A working backend that does too must give its bits, any
    // other one must stay within the tolerances of kernels/check/tolerance.h. An op that does not
    // throws Error{internal} naming op, element, both values and what is allowed.
    CheckBackend(std::unique_ptr<Backend> work, std::unique_ptr<Backend> reference);

    std::string name() const override { return "check"; }
    std::string device() const override;

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override { return work_->allocate_host(bytes); }
    void release_host(void* pointer) noexcept override { work_->release_host(pointer); }
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override { work_->synchronize(); }

    void embed(View<float> out, const int32_t* tokens, const Matrix& table,
               int32_t copies) override;
    void rms_norm(View<float> out, View<const float> in, const float* weight, float eps) override;
    void layer_norm(View<float> out, View<const float> in, const float* weight, const float* bias,
                    float eps) override;
    void swiglu(View<float> out, View<const float> gate, View<const float> up,
                float limit) override;
    void add(View<float> out, View<const float> in) override;
    void tree_sum(View<float> out, const float* parts, int32_t count, int64_t part_stride) override;
    void copy_rows(View<float> out, View<const float> in, const int32_t* index) override;

    void linear(View<float> out, View<const float> in, const Matrix& weight) override;
    void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
               float scale, const Rows& rows) override;
    void moe(View<float> out, View<const float> in, View<const int32_t> ids,
             View<const float> weights, const MoeWeights& experts) override;

    void argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                int32_t valid) override;
    void top_k(View<float> values, View<int32_t> ids, View<const float> logits, int32_t first_id,
               int32_t valid) override;
    void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                     const int32_t* part_ids, int32_t count, int64_t part_stride) override;

    void mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                   int32_t count) override;
    void sample(double* score, int32_t* id, float* logit, View<const float> logits,
                const SampleRow* rows, int32_t count, View<const int32_t> excluded,
                int32_t first_id, int32_t valid) override;
    void sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                           View<const float> logits, const SampleRow* rows, int32_t count,
                           int32_t first_id, int32_t valid) override;
    void sample_sum(ExpSum* sums, View<const float> logits, const SampleRow* rows, int32_t count,
                    int32_t first_id, int32_t valid) override;
    void sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                   View<const float> logits, const SampleRow* rows, int32_t count, int32_t first_id,
                   int32_t valid) override;

    void hyper_weights(View<float> pre, View<float> post, View<float> mix,
                       View<const float> streams, const Matrix& fn, const float* base,
                       const float* scale, const HyperParams& params) override;
    void hyper_in(View<float> out, View<const float> streams, View<const float> pre) override;
    void hyper_out(View<float> streams, View<const float> y, View<const float> post,
                   View<const float> mix) override;
    void stream_mean(View<float> out, View<const float> streams, int32_t streams_count) override;

    void kda(View<float> out, View<const float> qkv, View<const float> f, View<const float> b,
             View<const float> g, const KdaWeights& weights, const KdaState& state,
             const KdaParams& params, const Rows& rows) override;
    void kda_flush(const KdaWeights& weights, const KdaState& state, const KdaParams& params,
                   int32_t slot, int32_t pending, bool fresh) override;

    void latent_append(View<float> latents, View<const float> latent, const Rows& rows) override;
    void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                    const float* ape, const IndexParams& params, const Rows& rows) override;
    void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                      View<const float> weight, const IndexCache& cache, const IndexParams& params,
                      const Rows& rows) override;
    void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                       View<const float> latents, View<const int32_t> selected,
                       const int32_t* count, const MlaParams& params, const Rows& rows) override;

    void block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                      const Rows& rows) override;
    void mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                       const Rows& rows) override;
    void merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                       int32_t count, int64_t part_bytes) override;

    void draft_append(const DraftCache& cache, View<const float> key, View<const float> value,
                      const float* k_norm, const uint8_t* write, const DraftAttentionParams& params,
                      const Rows& rows) override;
    void draft_attention(View<float> out, View<const float> query, View<const float> key,
                         View<const float> value, const float* q_norm, const float* k_norm,
                         const DraftCache& cache, const DraftAttentionParams& params,
                         const Rows& rows) override;
    void draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                    const float* base, int32_t taps, int32_t group, int32_t block) override;
    void walk_path(View<int32_t> path, View<float> scores, View<const float> values,
                   View<const int32_t> ids, View<const float> projected, const Matrix& predecessor,
                   const Matrix& successor, const int32_t* anchor, const SampleRow* draws) override;

  private:
    OpCall call(const char* op);

    std::unique_ptr<Backend> work_;
    std::unique_ptr<Backend> reference_;
    Mirror mirror_;
};

}  // namespace quadrille::check
