// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampling/best_over_ranks.h"

#include "kernels/error.h"

namespace quadrille {

BestOverRanks::BestOverRanks(Backend& backend, Communicator& comm, const Range& vocab,
                             int64_t known, int64_t max_rows, int64_t top)
    : backend_(backend),
      comm_(comm),
      first_id_(static_cast<int32_t>(vocab.begin)),
      valid_(known_ids(vocab, known)),
      top_(top) {
    if (comm.size() == 1) return;
    own_ = Array<float>(backend, 1, 2 * max_rows * top);
    all_ = Array<float>(backend, comm.size(), 2 * max_rows * top);
}

void BestOverRanks::find_own(View<float> values, View<int32_t> ids, View<const float> logits) {
    if (top_ == 1) {
        backend_.argmax(values.data, ids.data, logits, first_id_, valid_);
    } else {
        backend_.top_k(values, ids, logits, first_id_, valid_);
    }
}

void BestOverRanks::find(View<float> values, View<int32_t> ids, View<const float> logits) {
    if (comm_.size() == 1) {
        find_own(values, ids, logits);
        return;
    }
    const int64_t m = logits.rows;
    const int64_t count = m * top_;
    require(2 * count <= own_.cols(), "rows within the limit of the exchange");
    const auto ids_behind = [count](float* words) {
        return reinterpret_cast<int32_t*>(words + count);
    };
    find_own({own_.data(), m, top_}, {ids_behind(own_.data()), m, top_}, logits);
    comm_.all_gather(all_.data(), own_.data(), 2 * count * int64_t{sizeof(float)});
    backend_.merge_top_k(values, ids, all_.data(), ids_behind(all_.data()), comm_.size(),
                         2 * count);
}

}  // namespace quadrille
