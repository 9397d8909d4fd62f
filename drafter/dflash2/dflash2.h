// SPDX-License-Identifier: Apache-2.0
// DFlash2 (and DFlash v1: no convolutions, no selector): drafts a block of tokens at once from the
// target's taps. Context: every committed token's taps, through fc and hidden_norm, give keys and
// values for all layers. A proposal runs the whole block [anchor, MASK, ...] of block_size rows,
// always, and walks the best candidates of the first K slots. Embedding and head are the target's.
#pragma once

#include "drafter/dflash2/draft_layer.h"
#include "drafter/dflash2/draft_plan.h"
#include "drafter/dflash2/selector.h"
#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "runtime/drafter.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/target_model.h"
#include "runtime/model/weights.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"
#include "runtime/ranks/tree_reduce.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace quadrille {

struct DraftOptions {
    DraftPlacement placement = DraftPlacement::sharded;
    int64_t known_tokens = 0;  // ids from here on are never drafted; 0: the whole vocabulary
    LoadProgress progress{};
};

class DFlash2 final : public Drafter {
  public:
    // `target` was built with taps = config.target_layer_ids and outlives this, as the others do.
    // Errors: those of draft_plan.h, and Error{input} for tensors. Not collective: ranks may fail
    // alone, so construct inside agree().
    DFlash2(Backend& backend, Communicator& comm, Position& position, const DraftConfig& config,
            const Checkpoint& checkpoint, const TargetModel& target, const DraftOptions& options);

    int32_t max_k() const override { return block_ - 1; }
    const std::vector<int64_t>& taps() const override { return config_.target_layer_ids; }
    void append(View<const float> taps, std::span<const uint8_t> write, const Rows& rows) override;
    void propose(std::span<int32_t> drafts, int32_t k,
                 std::span<const DraftRequest> requests) override;

    DraftCandidates candidates() const override { return selector_.candidates(); }

    int32_t backend_block() const override { return block_; }
    int32_t mask_token() const override { return block_tokens_.back(); }
    void append_on_backend(View<const float> taps, const uint8_t* write, const Rows& rows) override;
    View<const int32_t> propose_on_backend(int32_t k, const DraftPass& pass) override;

    int64_t weight_bytes() const { return loader_.bytes(); }

    // The last append's: (m, hidden) after fc and hidden_norm.
    View<const float> features() const { return features_.first(appended_); }
    // The last proposal's: (requests * block_size, hidden) after the final norm, and this rank's
    // logits (requests * k, vocab part).
    View<const float> hidden() const { return hidden_.first(proposed_ * block_); }
    View<const float> logits() const { return selector_.logits(); }
    // Keys, then values, of the context positions [first, last) of a slot, layer by layer.
    std::vector<std::vector<float>> download_context(int32_t slot, int64_t first,
                                                     int64_t last) const;

  private:
    // hidden_ of whole blocks; tokens (m) in backend memory.
    void run_block(const Rows& rows, const int32_t* tokens);

    Backend& backend_;
    Position& position_;
    DraftConfig config_;
    int32_t block_;
    float norm_eps_;
    DraftPlan plan_;
    DraftRows limits_;
    WeightLoader loader_;
    Matrix embedding_;
    Matrix fc_;
    const float* hidden_norm_;
    const float* norm_;
    std::vector<DraftLayer> layers_;
    Selector selector_;
    std::optional<TreeReduce> reduce_;  // only where layers are split over several ranks
    DraftScratch scratch_;
    StepBatch batch_;
    std::vector<int32_t> block_tokens_;
    Array<uint8_t> write_;
    Array<float> features_;       // (context rows, hidden)
    Array<float> rows_, hidden_;  // (slots * block_size, hidden)
    int64_t appended_ = 0;        // rows of the last append
    int64_t proposed_ = 0;        // requests of the last proposal
};

}  // namespace quadrille
