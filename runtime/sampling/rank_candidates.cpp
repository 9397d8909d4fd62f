// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/rank_candidates.h"

#include "kernels/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quadrille {

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Bytes of a row in the exchange: drawn or filtered, its best, two sums, a draft's candidates.
constexpr int64_t kRowBytes = 16 + 2 * 12 * RankCandidates::kCandidates +
                              2 * int64_t{sizeof(ExpSum)} + 8 * RankCandidates::kMaxProposed;
constexpr int64_t kPadding = 16 * 8;  // of the parts of a block

int32_t append(std::vector<SampleRow>& rows, const SampleRow& row) {
    rows.push_back(row);
    return static_cast<int32_t>(rows.size()) - 1;
}

// `ids` in the last row of a (rows, kMaxProposed) table, -1 behind them.
void append_ids(std::vector<int32_t>& table, std::span<const int32_t> ids) {
    require(std::ssize(ids) <= RankCandidates::kMaxProposed,
            "candidates of a draft within their limit");
    table.insert(table.end(), ids.begin(), ids.end());
    table.insert(table.end(), static_cast<size_t>(RankCandidates::kMaxProposed) - ids.size(), -1);
}

}  // namespace

RankCandidates::RankCandidates(Backend& backend, Communicator& comm, Range known, int32_t max_rows,
                               int32_t max_drafts)
    : backend_(backend),
      comm_(comm),
      first_id_(static_cast<int32_t>(known.begin)),
      valid_(static_cast<int32_t>(known.size())),
      known_(static_cast<size_t>(comm.size())),
      exchange_(backend, comm, max_rows * kRowBytes + kPadding),
      rows_(backend, 5, max_rows),
      ints_(backend, max_rows, max_drafts + 2 * kMaxProposed) {
    comm.all_gather_host(known_.data(), &known, sizeof known);
    for (const Range& range : known_) widest_ = std::max(widest_, range.size());
    row_ = Array<float>(backend, 1, widest_);
    gathered_row_ = Array<float>(backend, comm.size(), widest_);
    whole_.resize(static_cast<size_t>(widest_ * comm.size()));
}

void RankCandidates::clear() {
    for (auto* rows : {&drawn_, &filtered_, &summed_, &top_, &picked_}) rows->clear();
    for (auto* ints : {&drafts_, &excluded_, &proposed_}) ints->clear();
    excludes_ = false;
    top_count_ = 0;
}

SampleRow RankCandidates::with_drafts(SampleRow row, std::span<const int32_t> drafts) {
    row.drafts = ints_.data() + drafts_.size();  // the drafts are uploaded first
    row.draft_count = static_cast<int32_t>(drafts.size());
    drafts_.insert(drafts_.end(), drafts.begin(), drafts.end());
    return row;
}

int32_t RankCandidates::add_drawn(const SampleRow& row, std::span<const int32_t> excluded) {
    append_ids(excluded_, excluded);
    excludes_ = excludes_ || !excluded.empty();
    return append(drawn_, row);
}
int32_t RankCandidates::add_filtered(const SampleRow& row) {
    return append(filtered_, row);
}
int32_t RankCandidates::add_sum(const SampleRow& row) {
    return append(summed_, row);
}
int32_t RankCandidates::add_top(const SampleRow& row, int64_t count) {
    require(count > 0 && count <= kCandidates, "add_top: a count within what a rank offers");
    top_count_ = std::max(top_count_, count);
    return append(top_, row);
}
int32_t RankCandidates::add_picked(const SampleRow& row, std::span<const int32_t> ids) {
    append_ids(proposed_, ids);
    return append(picked_, row);
}

// ---- the ops ------------------------------------------------------------------------------------

void RankCandidates::upload() {
    staged_rows_.clear();
    for (const auto* rows : {&drawn_, &filtered_, &summed_, &top_, &picked_}) {
        staged_rows_.insert(staged_rows_.end(), rows->begin(), rows->end());
    }
    rows_.upload(staged_rows_);
    staged_ints_ = drafts_;
    if (!excludes_) excluded_.clear();
    for (const auto* ints : {&excluded_, &proposed_}) {
        staged_ints_.insert(staged_ints_.end(), ints->begin(), ints->end());
    }
    ints_.upload(staged_ints_);
}

const SampleRow* RankCandidates::rows_of(const Rows& list) const {
    const SampleRow* rows = rows_.data();
    for (const auto* each : {&drawn_, &filtered_, &summed_, &top_, &picked_}) {
        if (each == &list) break;
        rows += each->size();
    }
    return rows;
}

View<float> RankCandidates::floats(int64_t offset, const Rows& list, int64_t width) const {
    return {exchange_.mine<float>(offset), std::ssize(list), width};
}
View<int32_t> RankCandidates::ints(int64_t offset, const Rows& list, int64_t width) const {
    return {exchange_.mine<int32_t>(offset), std::ssize(list), width};
}

SampleInput RankCandidates::input_of(const Rows& list, View<const float> logits) const {
    return {logits, rows_of(list), static_cast<int32_t>(list.size()), first_id_, valid_};
}

void RankCandidates::run_drawn(View<const float> logits) {
    const auto count = static_cast<int32_t>(drawn_.size());
    at_.score = exchange_.place<double>(count);
    at_.id = exchange_.place<int32_t>(count);
    at_.logit = exchange_.place<float>(count);
    const View<const int32_t> excluded{ints_.data() + drafts_.size(), count,
                                       excludes_ ? kMaxProposed : 0};
    backend_.sample(exchange_.mine<double>(at_.score), exchange_.mine<int32_t>(at_.id),
                    exchange_.mine<float>(at_.logit), input_of(drawn_, logits), excluded);
}

void RankCandidates::run_filtered(View<const float> logits) {
    const auto count = static_cast<int32_t>(filtered_.size());
    at_.values = exchange_.place<float>(count * kCandidates);
    at_.raw = exchange_.place<float>(count * kCandidates);
    at_.ids = exchange_.place<int32_t>(count * kCandidates);
    backend_.sample_candidates(floats(at_.values, filtered_, kCandidates),
                               floats(at_.raw, filtered_, kCandidates),
                               ints(at_.ids, filtered_, kCandidates), input_of(filtered_, logits));
}

void RankCandidates::run_top(View<const float> logits) {
    const auto count = static_cast<int32_t>(top_.size());
    at_.top_values = exchange_.place<float>(count * top_count_);
    at_.top_raw = exchange_.place<float>(count * top_count_);
    at_.top_ids = exchange_.place<int32_t>(count * top_count_);
    backend_.sample_candidates(floats(at_.top_values, top_, top_count_),
                               floats(at_.top_raw, top_, top_count_),
                               ints(at_.top_ids, top_, top_count_), input_of(top_, logits));
}

void RankCandidates::run_picked(View<const float> logits) {
    const auto count = static_cast<int32_t>(picked_.size());
    at_.picked_values = exchange_.place<float>(count * kMaxProposed);
    at_.picked_raw = exchange_.place<float>(count * kMaxProposed);
    const int32_t* const ids = ints_.data() + drafts_.size() + excluded_.size();
    backend_.sample_at(floats(at_.picked_values, picked_, kMaxProposed),
                       floats(at_.picked_raw, picked_, kMaxProposed), {ids, count, kMaxProposed},
                       input_of(picked_, logits));
}

void RankCandidates::run(View<const float> logits) {
    upload();
    exchange_.clear();
    if (!drawn_.empty()) run_drawn(logits);
    if (!filtered_.empty()) run_filtered(logits);
    if (!summed_.empty()) {
        const auto count = static_cast<int32_t>(summed_.size());
        at_.sums = exchange_.place<ExpSum>(count);
        backend_.sample_sum(exchange_.mine<ExpSum>(at_.sums), input_of(summed_, logits));
    }
    if (!top_.empty()) run_top(logits);
    if (!picked_.empty()) run_picked(logits);
    exchange_.run();
}

// ---- the results, merged ------------------------------------------------------------------------

OtherBest RankCandidates::drawn(int32_t index) const {
    OtherBest best;
    for (int rank = 0; rank < comm_.size(); ++rank) {  // rank order is id order
        const double score = exchange_.of<double>(rank, at_.score)[index];
        const int32_t id = exchange_.of<int32_t>(rank, at_.id)[index];
        if (id < 0 || (best.candidate.id >= 0 && !(score > best.score))) continue;
        best = {{.raw = exchange_.of<float>(rank, at_.logit)[index], .id = id}, score};
    }
    return best;
}

bool RankCandidates::candidates(int32_t index, std::vector<Candidate>& out) const {
    out.clear();
    std::vector<Candidate> ends;  // the last one of each rank that has more
    for (int rank = 0; rank < comm_.size(); ++rank) {
        const int64_t first = index * kCandidates;
        const float* const values = exchange_.of<float>(rank, at_.values) + first;
        const float* const raw = exchange_.of<float>(rank, at_.raw) + first;
        const int32_t* const ids = exchange_.of<int32_t>(rank, at_.ids) + first;
        int64_t held = 0;
        for (; held < kCandidates && ids[held] >= 0; ++held) {
            out.push_back({values[held], raw[held], ids[held]});
        }
        const bool more = known_[static_cast<size_t>(rank)].size() > kCandidates;
        if (held == kCandidates && more) ends.push_back(out.back());
    }
    std::sort(out.begin(), out.end(), before);
    if (ends.empty()) return true;
    // Behind the first of these ends a rank may have ids that it did not offer.
    const Candidate end = *std::min_element(ends.begin(), ends.end(), before);
    out.erase(std::upper_bound(out.begin(), out.end(), end, before), out.end());
    return false;
}

ExpSum RankCandidates::sum(int32_t index) const {
    ExpSum sum;
    for (int rank = 0; rank < comm_.size(); ++rank) {
        sum.add(exchange_.of<ExpSum>(rank, at_.sums)[index]);
    }
    return sum;
}

void RankCandidates::top(int32_t index, int64_t count, std::vector<Candidate>& out) const {
    out.clear();
    for (int rank = 0; rank < comm_.size(); ++rank) {
        const int64_t first = index * top_count_;
        for (int64_t j = first; j < first + count; ++j) {
            const int32_t id = exchange_.of<int32_t>(rank, at_.top_ids)[j];
            if (id < 0) break;
            out.push_back({exchange_.of<float>(rank, at_.top_values)[j],
                           exchange_.of<float>(rank, at_.top_raw)[j], id});
        }
    }
    std::sort(out.begin(), out.end(), before);
    if (std::ssize(out) > count) out.resize(static_cast<size_t>(count));
}

Candidate RankCandidates::picked(int32_t index, int32_t j, int32_t id) const {
    const int64_t at = index * kMaxProposed + j;
    Candidate found{kNaN, kNaN, id};
    for (int rank = 0; rank < comm_.size(); ++rank) {
        const float value = exchange_.of<float>(rank, at_.picked_values)[at];
        if (std::isnan(value)) continue;
        found.value = value;
        found.raw = exchange_.of<float>(rank, at_.picked_raw)[at];
    }
    return found;
}

void RankCandidates::gather(View<const float> logits, const SampleRow& row,
                            std::vector<Candidate>& out) {
    backend_.copy(row_.data(), logits.row(row.row), valid_ * int64_t{sizeof(float)});
    comm_.all_gather(gathered_row_.data(), row_.data(), row_.bytes());
    backend_.download(whole_.data(), gathered_row_.data(), gathered_row_.bytes());
    out.clear();
    for (size_t rank = 0; rank < known_.size(); ++rank) {
        const float* const part = whole_.data() + static_cast<int64_t>(rank) * widest_;
        for (int64_t c = 0; c < known_[rank].size(); ++c) {
            const auto id = static_cast<int32_t>(known_[rank].begin + c);
            const float value = logit_of(row, part[c], id);
            if (value > -std::numeric_limits<float>::infinity())
                out.push_back({value, part[c], id});
        }
    }
    std::sort(out.begin(), out.end(), before);
}

}  // namespace quadrille
