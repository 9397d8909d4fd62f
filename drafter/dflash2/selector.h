// SPDX-License-Identifier: Apache-2.0
// From final hidden rows to drafts: the target's head on the rows of the first K slots, the best
// candidates of each over all ranks, and the walk of the candidate selector (DFlash2), or just the
// best candidate of every slot (DFlash v1).
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/drafter.h"
#include "runtime/model/shard.h"
#include "runtime/model/weights.h"
#include "runtime/ranks/comm.h"
#include "runtime/sampling/best_over_ranks.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

class Selector {
  public:
    // `head`: this rank's rows `vocab` of it. Ids from `known` on are never drafted. `slots`:
    // sequences of the largest proposal.
    Selector(Backend& backend, Communicator& comm, WeightLoader& loader, const DraftConfig& config,
             const Matrix& head, Range vocab, int64_t known, int64_t slots);

    // drafts (requests * k), request-major. hidden (requests * block_size, hidden) after the final
    // norm; row t of a block predicts slot t. Collective.
    void choose(std::span<int32_t> drafts, View<const float> hidden, int32_t k,
                std::span<const DraftRequest> requests);

    // The same with inputs in backend memory: drafts (sequences, k) there.
    View<const int32_t> choose_on_backend(View<const float> hidden, int32_t k,
                                          const DraftPass& pass) {
        return walk(hidden, k, pass, false);
    }

    // The last choice's, where a request of it drew from Stream::draft; else of an earlier one.
    DraftCandidates candidates() const { return {top_, host_ids_, host_scores_}; }

    // (requests * k, vocab part) of the last choice.
    View<const float> logits() const { return logits_.first(rows_); }

  private:
    // path_: of pass.rows.sequences; kept: scores_ too.
    View<const int32_t> walk(View<const float> hidden, int32_t k, const DraftPass& pass, bool kept);
    // The requests' draws in backend memory; nullptr where all are greedy and without a penalty.
    const SampleRow* upload_draws(std::span<const DraftRequest> requests);

    Backend& backend_;
    Matrix head_;
    int32_t block_;
    int64_t rank_;  // of the selector; 0: none
    int64_t top_;   // candidates of a slot
    BestOverRanks best_;
    Matrix predecessor_, successor_, projection_;
    std::vector<int32_t> staged_;
    Array<int32_t> index_;  // rows that predict (slots * k), then anchors (slots)
    Array<float> hidden_, logits_, projected_, values_;  // (slots * k, ...)
    Array<int32_t> ids_, path_;
    Array<SampleRow> draws_;  // (slots)
    Array<float> scores_;     // (slots * k, top)
    std::vector<SampleRow> staged_draws_;
    std::vector<int32_t> host_ids_;   // (requests * k, top)
    std::vector<float> host_scores_;  // (requests * k, top)
    int64_t rows_ = 0;
};

}  // namespace quadrille
