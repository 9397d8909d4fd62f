// SPDX-License-Identifier: Apache-2.0
// CpuBackend: the judge. Plain loops, fp32 accumulation in a fixed order; every other path is
// tested against it. One file per op family defines the members declared here.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/paths.h"
#include "kernels/cpu/sequence_paths.h"
#include "kernels/filter.h"
#include "kernels/host_memory.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace quadrille::cpu {

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(Isa isa = detect_isa());

    std::string name() const override { return "cpu"; }
    std::string device() const override;
    bool on_host() const override { return true; }
    int64_t available() const override { return available_host_memory(); }

    void* allocate(int64_t bytes) override;
    void release(void* pointer) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* pointer) noexcept override;
    void upload(void* to, const void* host, int64_t bytes) override;
    void download(void* host, const void* from, int64_t bytes) override;
    void copy(void* to, const void* from, int64_t bytes) override;
    void fill_zero(void* to, int64_t bytes) override;
    void synchronize() override {}

#define QUADRILLE_OP(name, parameters, arguments) void name parameters override;
#include "kernels/ops.def"
#undef QUADRILLE_OP

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
    std::vector<Candidate> best_;                  // of a row that is sampled
    std::vector<uint64_t> pool_keys_;              // index_select: a row's pools, to be sorted
    std::vector<const float*> key_places_;         // attention: keys of a row's positions
    std::vector<const float*> value_places_;       //            values
};

}  // namespace quadrille::cpu
