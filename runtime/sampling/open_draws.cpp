// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/open_draws.h"

#include "kernels/error.h"

#include <algorithm>
#include <numeric>

namespace quadrille {

namespace {

// A row in the exchange: what is drawn, and a sum.
constexpr int64_t kRowBytes = 16 + int64_t{sizeof(ExpSum)};
constexpr int64_t kPadding = 8 * 4;

}  // namespace

OpenDraws::OpenDraws(Backend& backend, Communicator& comm, Range known, int32_t max_rows)
    : backend_(backend),
      comm_(comm),
      first_id_(static_cast<int32_t>(known.begin)),
      valid_(static_cast<int32_t>(known.size())),
      exchange_(backend, comm, max_rows * kRowBytes + kPadding),
      table_(backend, 1, max_rows) {}

int32_t OpenDraws::add(const Row& row) {
    rows_.push_back({.row = row});
    return static_cast<int32_t>(rows_.size()) - 1;
}

void OpenDraws::run(View<const float> logits) {
    open_.resize(rows_.size());
    std::iota(open_.begin(), open_.end(), 0);
    while (!open_.empty()) draw_once(logits);
}

// Draws for all open rows, then the sums before what was drawn.
void OpenDraws::draw_once(View<const float> logits) {
    const auto count = static_cast<int32_t>(open_.size());
    const auto upload = [&] {
        staged_.clear();
        for (const int32_t index : open_) {
            staged_.push_back(rows_[static_cast<size_t>(index)].row.on_backend);
        }
        table_.upload(staged_);
        return SampleInput{logits, table_.data(), count, first_id_, valid_};
    };
    exchange_.clear();
    at_.score = exchange_.place<double>(count);
    at_.id = exchange_.place<int32_t>(count);
    at_.logit = exchange_.place<float>(count);
    backend_.sample(exchange_.mine<double>(at_.score), exchange_.mine<int32_t>(at_.id),
                    exchange_.mine<float>(at_.logit), upload(), {});
    exchange_.run();
    for (int32_t i = 0; i < count; ++i) {
        Open& open = rows_[static_cast<size_t>(open_[static_cast<size_t>(i)])];
        require(merge(open, i), "open draws: an id in front of each that is cut");
        open.row.on_backend.end = open.drawn.value;
        open.row.on_backend.end_id = open.drawn.id;
    }
    exchange_.clear();
    at_.sums = exchange_.place<ExpSum>(count);
    backend_.sample_sum(exchange_.mine<ExpSum>(at_.sums), upload());
    exchange_.run();
    size_t left = 0;
    for (int32_t i = 0; i < count; ++i) {
        const int32_t index = open_[static_cast<size_t>(i)];
        const Open& open = rows_[static_cast<size_t>(index)];
        ExpSum before;
        for (int rank = 0; rank < comm_.size(); ++rank) {
            before.add(exchange_.of<ExpSum>(rank, at_.sums)[i]);
        }
        const Row& row = open.row;
        if (!stays(open.drawn.value, before, row.best, row.total, filter_of(row.on_host))) {
            open_[left++] = index;
        }
    }
    open_.resize(left);
}

// The best over all ranks; false: there is none.
bool OpenDraws::merge(Open& open, int64_t place) const {
    double best = 0.0;
    bool found = false;
    for (int rank = 0; rank < comm_.size(); ++rank) {  // rank order is id order
        const double score = exchange_.of<double>(rank, at_.score)[place];
        const int32_t id = exchange_.of<int32_t>(rank, at_.id)[place];
        if (id < 0 || (found && !(score > best))) continue;
        const float raw = exchange_.of<float>(rank, at_.logit)[place];
        open.drawn = {logit_of(open.row.on_host, raw, id), raw, id};
        best = score;
        found = true;
    }
    return found;
}

}  // namespace quadrille
