// SPDX-License-Identifier: Apache-2.0
// Launchers of the ops that know streams, sequences and caches: mHC, KDA, MLA with its indexer, the
// drafter's own ops. Shapes and meanings as in kernels/backend.h. What the CPU can check of the
// contents of device memory (slots, positions, tokens) is not checked here.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/kernel_set.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace quadrille::cuda {

// hyper.cu
struct HyperNeed {
    int64_t partial;   // floats
    int64_t counters;  // zero between launches
};
HyperNeed hyper_need(int64_t rows, const Matrix& fn);
void hyper_weights(View<float> pre, View<float> post, View<float> mix, View<const float> streams,
                   const Matrix& fn, const float* base, const float* scale,
                   const HyperParams& params, float* partial, int32_t* counters,
                   LaunchStream stream);
void hyper_in(View<float> out, View<const float> streams, View<const float> pre,
              LaunchStream stream);
void hyper_out(View<float> streams, View<const float> y, View<const float> post,
               View<const float> mix, LaunchStream stream);
void stream_mean(View<float> out, View<const float> streams, int32_t count, LaunchStream stream);

// kda.cu
void kda(View<float> out, View<const float> qkv, View<const float> f, View<const float> b,
         View<const float> g, const KdaWeights& weights, const KdaState& state,
         const KdaParams& params, const Rows& rows, KernelSet& kernels, LaunchStream stream);
void kda_flush(const KdaWeights& weights, const KdaState& state, const KdaParams& params,
               int32_t slot, int32_t pending, bool fresh, KernelSet& kernels, LaunchStream stream);

// indexer.cu
void index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                const float* ape, const IndexParams& params, const Rows& rows, LaunchStream stream);
// keys: scratch of index_keys(...) numbers, for any number of rows (taken in turns).
int64_t index_keys(int64_t rows, const IndexCache& cache, const IndexParams& params);
void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                  View<const float> weight, const IndexCache& cache, const IndexParams& params,
                  const Rows& rows, uint32_t* keys, KernelSet& kernels, LaunchStream stream);

// mla.cu
void latent_append(View<float> latents, View<const float> latent, const Rows& rows,
                   LaunchStream stream);
// scratch: mla_scratch(...) floats.
// width: columns of `selected`, no fewer than the positions of any row.
int64_t mla_scratch(int64_t rows, int64_t width, const MlaParams& params);
void mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                   View<const float> latents, View<const int32_t> selected, const int32_t* count,
                   const MlaParams& params, const Rows& rows, float* scratch, KernelSet& kernels,
                   LaunchStream stream);

// block_ops.cu
void block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                  const Rows& rows, LaunchStream stream);
void mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target, const Rows& rows,
                   LaunchStream stream);
void merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m, int32_t count,
                   int64_t part_bytes, LaunchStream stream);

// draft_attention.cu
void draft_append(const DraftCache& cache, View<const float> key, View<const float> value,
                  const float* k_norm, const uint8_t* write, const DraftAttentionParams& params,
                  const Rows& rows, LaunchStream stream);
// scratch: draft_attention_scratch() floats.
void draft_attention(View<float> out, View<const float> query, View<const float> key,
                     View<const float> value, const float* q_norm, const float* k_norm,
                     const DraftCache& cache, const DraftAttentionParams& params, const Rows& rows,
                     float* scratch, KernelSet& kernels, LaunchStream stream);
int64_t draft_attention_scratch(const DraftCache& cache, const DraftAttentionParams& params,
                                int32_t sequences);

// draft.cu
void draft_conv(View<float> out, View<const float> in, View<const float> dynamic, const float* base,
                int32_t taps, int32_t group, int32_t block, LaunchStream stream);
void walk_path(View<int32_t> path, View<float> scores, View<const float> values,
               View<const int32_t> ids, View<const float> projected, const Matrix& predecessor,
               const Matrix& successor, const int32_t* anchor, const SampleRow* draws,
               LaunchStream stream);

// sample.cu
void mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens, int32_t count,
               LaunchStream stream);
void sample(double* score, int32_t* id, float* logit, View<const float> logits,
            const SampleRow* rows, int32_t count, View<const int32_t> excluded, int32_t first_id,
            int32_t valid, LaunchStream stream);
// sample_candidates in three: out (count, valid) is l', NaN for what is never a candidate; top_k
// chooses; raw (count, k) are the logits of the chosen.
void sample_penalized(float* out, View<const float> logits, const SampleRow* rows, int32_t count,
                      int32_t first_id, int32_t valid, LaunchStream stream);
void sample_raw(View<float> raw, View<const int32_t> ids, View<const float> logits,
                const SampleRow* rows, int32_t count, int32_t first_id, LaunchStream stream);
void sample_sum(ExpSum* sums, View<const float> logits, const SampleRow* rows, int32_t count,
                int32_t first_id, int32_t valid, LaunchStream stream);
void sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
               View<const float> logits, const SampleRow* rows, int32_t count, int32_t first_id,
               int32_t valid, LaunchStream stream);

}  // namespace quadrille::cuda
