// SPDX-License-Identifier: Apache-2.0
// What the ranks tell each other about the rows of a pass: each runs the sampling ops on its part
// of the vocabulary, one all-gather brings the results to every host, and they are read merged.
// Rows are listed first, by kind; a kind's results are asked for by the index that listing
// returned.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/filter.h"
#include "runtime/model/shard.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/exchange.h"
#include "runtime/sampling/rejection.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

class RankCandidates {
  public:
    static constexpr int64_t kCandidates = 256;  // ids a rank offers for a filtered row
    static constexpr int64_t kMaxProposed = 64;  // candidates of a draft

    // `known`: this rank's ids that may be chosen. Collective. max_drafts: drafts of a row's
    // history.
    RankCandidates(Backend& backend, Communicator& comm, Range known, int32_t max_rows,
                   int32_t max_drafts);

    void clear();
    // A row whose history goes on with `drafts` behind what `seen` has.
    SampleRow with_drafts(SampleRow row, std::span<const int32_t> drafts);
    int32_t add_drawn(const SampleRow& row, std::span<const int32_t> excluded);
    int32_t add_filtered(const SampleRow& row);
    int32_t add_sum(const SampleRow& row);
    int32_t add_top(const SampleRow& row, int64_t count);  // count <= kCandidates
    int32_t add_picked(const SampleRow& row, std::span<const int32_t> ids);

    // Runs the ops and the exchange. Collective.
    void run(View<const float> logits);

    // The best id of a drawn row over all ranks; id -1: none.
    OtherBest drawn(int32_t index) const;
    // The first ids of a filtered row in the order of before(), into `out`; true: all there are.
    bool candidates(int32_t index, std::vector<Candidate>& out) const;
    const SampleRow& filtered_row(int32_t index) const {
        return filtered_[static_cast<size_t>(index)];
    }
    ExpSum sum(int32_t index) const;
    // The first `count` ids of a top row; fewer where the vocabulary is smaller.
    void top(int32_t index, int64_t count, std::vector<Candidate>& out) const;
    // The j-th id of a picked row; value NaN: not in the vocabulary.
    Candidate picked(int32_t index, int32_t j, int32_t id) const;
    // Every id of one row, in the order of before(); `row` has its history in host memory.
    // Collective.
    void gather(View<const float> logits, const SampleRow& row, std::vector<Candidate>& out);

  private:
    using Rows = std::vector<SampleRow>;

    void upload();
    const SampleRow* rows_of(const Rows& list) const;
    SampleInput input_of(const Rows& list, View<const float> logits) const;
    View<float> floats(int64_t offset, const Rows& list, int64_t width) const;
    View<int32_t> ints(int64_t offset, const Rows& list, int64_t width) const;
    void run_drawn(View<const float> logits);
    void run_filtered(View<const float> logits);
    void run_top(View<const float> logits);
    void run_picked(View<const float> logits);

    Backend& backend_;
    Communicator& comm_;
    int32_t first_id_;
    int32_t valid_;
    std::vector<Range> known_;  // of each rank
    int64_t widest_ = 0;
    Exchange exchange_;
    Array<SampleRow> rows_;
    Array<int32_t> ints_;
    Array<float> row_, gathered_row_;  // one row of this rank, of all

    Rows drawn_, filtered_, summed_, top_, picked_;
    std::vector<int32_t> drafts_;    // all rows'
    std::vector<int32_t> excluded_;  // (drawn, kMaxProposed)
    std::vector<int32_t> proposed_;  // (picked, kMaxProposed)
    bool excludes_ = false;          // any id is excluded
    int64_t top_count_ = 0;

    struct {
        int64_t score = 0, id = 0, logit = 0;
        int64_t values = 0, raw = 0, ids = 0;
        int64_t sums = 0;
        int64_t top_values = 0, top_raw = 0, top_ids = 0;
        int64_t picked_values = 0, picked_raw = 0;
    } at_;  // offsets in the exchange
    std::vector<SampleRow> staged_rows_;
    std::vector<int32_t> staged_ints_;
    std::vector<float> whole_;
};

}  // namespace quadrille
