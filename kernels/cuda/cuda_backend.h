// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the ops on one GPU and one stream, in the order in which they are called. Nothing is
// allocated once the scratch has grown to the largest pass, so a pass can be recorded as a graph.
// A download waits for the stream; everything else returns at once.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/workspace.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace quadrille::cuda {

// The number of usable devices; 0 without a driver.
int32_t device_count();

class CudaBackend final : public Backend {
  public:
    // Throws Error{device} saying why where `device` cannot be used.
    explicit CudaBackend(int32_t device);

    const Stream& stream() const { return stream_; }
    int32_t processors() const { return kernels_.processors(); }

    std::string name() const override { return "cuda"; }
    std::string device() const override { return device_name_; }
    std::vector<std::string> libraries() const override;

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* pointer) noexcept override;
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override { stream_.synchronize(); }
    void fetch(void* host, const void* from, int64_t bytes) override;
    bool records() const override { return true; }
    std::unique_ptr<Recording> record(const std::function<void()>& work) override;

    void embed(View<float> out, const int32_t* tokens, const Matrix& table,
               int32_t copies) override;
    void rms_norm(View<float> out, View<const float> in, const float* weight, float eps) override;
    void layer_norm(View<float> out, View<const float> in, const float* weight, const float* bias,
                    float eps) override;
    void linear(View<float> out, View<const float> in, const Matrix& weight) override;
    void swiglu(View<float> out, View<const float> gate, View<const float> up,
                float limit) override;
    void add(View<float> out, View<const float> in) override;
    void tree_sum(View<float> out, const float* parts, int32_t count, int64_t part_stride) override;
    void copy_rows(View<float> out, View<const float> in, const int32_t* index) override;

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

  private:
    std::string device_name_;
    Stream stream_;
    KernelSet kernels_;
    Workspace workspace_{stream_};
    Products products_{stream_, kernels_, workspace_};
    Moe moe_{*this, products_, stream_, kernels_, workspace_};
    std::map<const void*, DeviceBuffer> memory_;
    std::map<const void*, PinnedBuffer> host_memory_;
};

}  // namespace quadrille::cuda
