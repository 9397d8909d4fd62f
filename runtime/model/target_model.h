// SPDX-License-Identifier: Apache-2.0
// The target: embedding, decoder layers over mHC streams, final norm, this rank's part of the
// head. One forward serves prefill and decode; all state lives in slots. Formulas:
// docs/design.md §3 and kernels/README.md.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/ffn_layer.h"
#include "runtime/model/hyper_site.h"
#include "runtime/model/kda_layer.h"
#include "runtime/model/mla_layer.h"
#include "runtime/model/shard.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/weights.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"
#include "runtime/ranks/tree_reduce.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

struct ModelLimits {
    int32_t slots = 16;        // sequences with state
    int64_t capacity = 0;      // tokens per slot
    int32_t max_rows = 0;      // rows of the largest pass
    int32_t max_block = 1;     // rows of the longest decode block that is verified (K_max + 1)
    int32_t replay_block = 1;  // rows of the longest one of tokens that are known

    bool operator==(const ModelLimits&) const = default;
    int32_t longest_block() const { return max_block > replay_block ? max_block : replay_block; }
};

class TargetModel {
  public:
    // `taps`: layers (ascending) whose completed stream mean is kept by every forward.
    // Errors: Error{input} for tensors, Error{usage} where the ranks do not divide the model.
    TargetModel(Backend& backend, Communicator& comm, Position& position, const ModelConfig& config,
                const Checkpoint& checkpoint, const ModelLimits& limits,
                std::vector<int64_t> taps = {}, const LoadProgress& progress = {});

    // One pass over an uploaded batch. Returns logits (logit_count, vocab part) of this rank; they,
    // taps() and hidden() stay valid until the next forward.
    View<const float> forward(const StepBatch& batch) { return forward(batch.inputs()); }
    View<const float> forward(const PassInputs& pass);
    // (m, taps * hidden): stream means of the rows of the last forward, taps side by side.
    View<const float> taps() const { return taps_out_.first(rows_); }
    // (logit_count, hidden): final norm of the rows that wanted logits.
    View<const float> hidden() const { return hidden_.first(logit_count_); }

    // out (rows, hidden): rows of the last forward from `first` on, after the final norm, whether
    // or not they wanted logits.
    void final_hidden(View<float> out, int64_t first) const;
    // rows (m, hidden), stream means of any layer, through the final norm, in place.
    void norm_final(View<float> rows) const;

    // Applies a sequence's pending rows, so that the stored state is that of plain decoding.
    void flush(int32_t slot, int32_t pending, bool fresh) const;
    // Every state of a slot up to `length` tokens, layer by layer, for comparison.
    std::vector<std::vector<float>> download_state(int32_t slot, int64_t length) const;

    const ModelConfig& config() const { return config_; }
    const ShardPlan& plan() const { return plan_; }
    const ModelLimits& limits() const { return limits_; }
    const std::vector<int64_t>& tap_layers() const { return tap_layers_; }
    const Matrix& embedding() const { return embedding_; }
    const Matrix& head() const { return head_; }
    int64_t weight_bytes() const { return loader_.bytes(); }
    // "12 MTP, 347 vision" or "": tensors of the checkpoint that this program does not use.
    std::string skipped_tensors() const;

  private:
    struct Layer {
        HyperSite attention_site, ffn_site;
        std::optional<KdaLayer> kda;
        std::optional<MlaLayer> mla;
        std::optional<FfnLayer> ffn;
    };
    Layer load_layer(int64_t index, const std::string& prefix);
    // streams updated with the sum over ranks of partial_.
    void leave(int64_t m);

    Backend& backend_;
    Position& position_;
    ModelConfig config_;
    ShardPlan plan_;
    ModelLimits limits_;
    std::vector<int64_t> tap_layers_;
    WeightLoader loader_;
    Matrix embedding_, head_;
    const float* final_norm_ = nullptr;
    std::vector<Layer> layers_;
    HyperPass hyper_;
    TreeReduce reduce_;
    KdaScratch kda_scratch_;
    MlaScratch mla_scratch_;
    FfnScratch ffn_scratch_;
    Array<float> streams_, partial_, sum_, mean_;
    Array<float> taps_out_, hidden_, logits_;
    int64_t rows_ = 0;
    int64_t logit_count_ = 0;
};

}  // namespace quadrille
