// SPDX-License-Identifier: Apache-2.0
// CpuBackend: the judge. Plain loops, fp32 accumulation in a fixed order; every other path is
// tested against it. One file per op family defines the members declared here.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/paths.h"
#include "kernels/cpu/sequence_paths.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quadrille::cpu {

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(Isa isa = detect_isa());

    std::string name() const override { return "cpu"; }
    std::string device() const override;
    bool on_host() const override { return true; }

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* pointer) noexcept override;
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override {}

    // rows.cpp
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

    // linear.cpp, moe.cpp
    void linear(View<float> out, View<const float> in, const Matrix& weight) override;
    void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
               float scale, const Rows& rows) override;
    void moe(View<float> out, View<const float> in, View<const int32_t> ids,
             View<const float> weights, const MoeWeights& experts) override;

    // vocabulary.cpp
    void argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                int32_t valid) override;
    void top_k(View<float> values, View<int32_t> ids, View<const float> logits, int32_t first_id,
               int32_t valid) override;
    void merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                     const int32_t* part_ids, int32_t count, int64_t part_stride) override;

    // sample.cpp
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

    // hyper.cpp
    void hyper_weights(View<float> pre, View<float> post, View<float> mix,
                       View<const float> streams, const Matrix& fn, const float* base,
                       const float* scale, const HyperParams& params) override;
    void hyper_in(View<float> out, View<const float> streams, View<const float> pre) override;
    void hyper_out(View<float> streams, View<const float> y, View<const float> post,
                   View<const float> mix) override;
    void stream_mean(View<float> out, View<const float> streams, int32_t streams_count) override;

    // kda.cpp
    void kda(View<float> out, View<const float> qkv, View<const float> f, View<const float> b,
             View<const float> g, const KdaWeights& weights, const KdaState& state,
             const KdaParams& params, const Rows& rows) override;
    void kda_flush(const KdaWeights& weights, const KdaState& state, const KdaParams& params,
                   int32_t slot, int32_t pending, bool fresh) override;

    // indexer.cpp, mla.cpp
    void latent_append(View<float> latents, View<const float> latent, const Rows& rows) override;
    void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                    const float* ape, const IndexParams& params, const Rows& rows) override;
    void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                      View<const float> weight, const IndexCache& cache, const IndexParams& params,
                      const Rows& rows) override;
    void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                       View<const float> latents, View<const int32_t> selected,
                       const int32_t* count, const MlaParams& params, const Rows& rows) override;

    // block_ops.cpp
    void block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                      const Rows& rows) override;
    void mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                       const Rows& rows) override;
    void merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                       int32_t count, int64_t part_bytes) override;

    // draft.cpp
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
    // Buffers of the ops; two that are alive at once have different names.
    enum Scratch : size_t {
        kRotatedScratch,  // linear: rotated inputs
        kBlockScratch,    //         products of a block of outputs
        kNativeScratch,   //         weights as fp32
        kSegmentScratch,  //         products of the segments
        kRouteScratch,
        kHiddenScratch,    // moe: activations of every pair
        kUpScratch,        //      one expert's up
        kGatherScratch,    //      one expert's rows
        kPairScratch,      //      products by pair
        kMoeScratch,       //      sums of the segments
        kWeightScratch,    // mla_attention, walk_path: rows of weights as fp32
        kGateScratch,      // hyper_weights: products with fn
        kPreparedScratch,  // kda: rows ready for the recurrence
        kZeroScratch,      //      raw inputs before the first token
        kHeadScratch,      //      a head's state, its delta
        kQueryScratch,     // mla_attention, draft_attention: queries ready for the scores
        kKeyScratch,       //      keys of a draft block
        kScoreScratch,     //      scores of a row
        kSumScratch,       //      weighted latents
        kAngleScratch,     // draft: rotation divisors and angles; walk_path: the predecessor
        kScratchCount = 24
    };

    // linear.cpp: out (m, n) = the product of one segment of `weight`, without bias; in (m, k).
    void segment_product(View<float> out, View<const float> in, const Matrix& weight,
                         int32_t segment);
    // moe.cpp
    struct MoePass;
    void moe_rows(View<float> out, MoePass& pass);
    void moe_hidden(const MoePass& pass);
    void moe_segment(float* sums, const MoePass& pass, int32_t segment);
    void gated(View<float> out, View<const float> in, const Mlp& mlp, float limit);
    void group_pairs(View<const int32_t> ids, int32_t experts);

    // mla.cpp
    void place_latents(View<const float> latents, int64_t visible, const int32_t* list,
                       int64_t count);

    // draft.cpp
    void place_context(const DraftCache& cache, int32_t slot, int64_t begin, int64_t position,
                       View<const float> key, View<const float> value);
    void attend_block(View<float> out, const float* queries, int64_t position, int64_t begin,
                      const DraftAttentionParams& params);

    // Scratch that only grows, 64-byte aligned: after the largest pass no op allocates.
    float* scratch(size_t which, int64_t floats);
    std::vector<std::vector<float>> scratch_ = std::vector<std::vector<float>>(kScratchCount);

    const Paths* paths_;
    const SequencePaths* sequence_;
    std::array<std::vector<float>, 3> codebooks_;  // (65536) each, by Codebook
    std::vector<int64_t> moe_begin_;               // (experts + 1) into moe_pairs_
    std::vector<int32_t> moe_pairs_;               // row * topk + slot, grouped by expert
    std::vector<std::pair<float, int32_t>> best_;  // sample_candidates: a heap of the best
    std::vector<uint64_t> pool_keys_;              // index_select: a row's pools, to be sorted
    std::vector<const float*> key_places_;         // attention: keys of a row's positions
    std::vector<const float*> value_places_;       //            values
};

}  // namespace quadrille::cpu
