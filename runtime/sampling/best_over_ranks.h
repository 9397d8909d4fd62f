// SPDX-License-Identifier: Apache-2.0
// BestOverRanks: of each row of logits the best ids of the whole vocabulary, left in backend
// memory. Every rank looks at its part, one all-gather carries what they found.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/shard.h"
#include "runtime/ranks/comm.h"

#include <cstdint>

namespace quadrille {

class BestOverRanks {
  public:
    // `vocab`: this rank's ids; ids from `known` on are never found. At most `max_rows` rows,
    // `top` ids of each.
    BestOverRanks(Backend& backend, Communicator& comm, const Range& vocab, int64_t known,
                  int64_t max_rows, int64_t top);

    // values and ids (m, top) of logits (m, vocab part), best first, ties to the lowest id; id -1:
    // no further logit is a number. Collective; the host does not wait.
    void find(View<float> values, View<int32_t> ids, View<const float> logits);

  private:
    void find_own(View<float> values, View<int32_t> ids, View<const float> logits);

    Backend& backend_;
    Communicator& comm_;
    int32_t first_id_;
    int32_t valid_;
    int64_t top_;
    Array<float> own_, all_;  // values, then ids in the same words: of this rank, of each rank
};

}  // namespace quadrille
