// SPDX-License-Identifier: Apache-2.0
// One layer of the drafter: attention over the context ring and the block, gated MLP, both between
// dynamic convolutions (DFlash2) or plain (DFlash v1). Context rows never pass through a layer:
// they only leave a key and a value in its ring.
#pragma once

#include "drafter/dflash2/draft_plan.h"
#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/weights.h"
#include "runtime/ranks/tree_reduce.h"

#include <cstdint>
#include <string>

namespace quadrille {

// Rows of the drafter's largest passes.
struct DraftRows {
    int64_t slots = 0;
    int64_t capacity = 0;  // tokens per slot
    int64_t context = 0;   // rows of the longest append
    int64_t block = 0;     // rows of all blocks of a proposal
};

// Activations of one layer, shared by all of them.
struct DraftScratch {
    DraftScratch(Backend& backend, const DraftConfig& config, const DraftPlan& plan,
                 const DraftRows& rows);
    Array<float> in, mixed;   // (block, hidden) normed input; after the convolution before
    Array<float> dynamic;     // (block, 2 * taps * groups) coefficients, before | after
    Array<float> query, out;  // (block, heads * head_dim)
    Array<float> key, value;  // (context or block, kv_heads * head_dim)
    Array<float> gate, up;    // (block, intermediate)
    Array<float> sum;         // (block, hidden) output of a sublayer
};

class DraftLayer {
  public:
    DraftLayer(Backend& backend, WeightLoader& loader, const DraftConfig& config, int64_t index,
               const DraftPlan& plan, const DraftRows& rows);

    // Keys and values of context rows, features (m, hidden), into the ring.
    void append(View<const float> features, const uint8_t* write, const Rows& rows,
                DraftScratch& scratch) const;
    // hidden (blocks * block_size, hidden) in place. `reduce`: sums partial products over the
    // ranks; nullptr where they are whole.
    void forward(View<float> hidden, const Rows& rows, DraftScratch& scratch,
                 TreeReduce* reduce) const;

    // Keys, then values, of the context positions [first, last) of a slot, for comparison.
    std::vector<float> download_context(int32_t slot, int64_t first, int64_t last) const;

  private:
    struct Conv {
        Matrix kernel;                // (2 * taps * groups, hidden)
        const float* base = nullptr;  // (2, taps, hidden); nullptr: no convolution
    };
    Conv load_conv(WeightLoader& loader, const std::string& prefix, const DraftConfig& config);
    // Input of a sublayer: scratch.in normed, then the convolution before it, if any.
    View<const float> enter(View<const float> hidden, const float* norm, const Conv& conv,
                            DraftScratch& scratch) const;
    // hidden += the sublayer's sum, after the convolution behind it, if any.
    void leave(View<float> hidden, const Conv& conv, DraftScratch& scratch,
               TreeReduce* reduce) const;
    DraftCache cache() const;

    Backend& backend_;
    DraftAttentionParams params_;
    int32_t conv_taps_;
    int32_t conv_group_;
    const float* input_norm_;
    const float* post_norm_;
    const float* q_norm_;
    const float* k_norm_;
    Matrix query_, key_, value_, out_;
    Mlp mlp_;
    Conv attention_conv_, mlp_conv_;
    int32_t ring_size_;
    Array<float> keys_, values_;  // (slots, ring_size * kv_heads * head_dim)
};

}  // namespace quadrille
