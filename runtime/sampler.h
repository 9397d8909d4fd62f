// SPDX-License-Identifier: Apache-2.0
// From logits split over ranks to the target's own next token of every row. Greedy: the largest
// logit, ties to the lowest id; every rank contributes two numbers a row.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/comm.h"
#include "runtime/shard.h"

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille {

class Sampler {
  public:
    // `vocab`: this rank's ids; ids >= `known` are never chosen (padding of the vocabulary).
    Sampler(Backend& backend, Communicator& comm, Range vocab, int64_t known, int32_t max_rows);

    // Tokens of rows (m, vocab part), the same on every rank; valid until the next call.
    std::span<const int32_t> greedy(View<const float> logits);

  private:
    Backend& backend_;
    Communicator& comm_;
    int32_t first_id_;
    int32_t valid_;
    int32_t max_rows_;
    Array<float> local_;     // value (rows) | id (rows, int32 bits)
    Array<float> gathered_;  // (ranks, 2 * rows)
    std::vector<float> host_;
    std::vector<int32_t> tokens_;
};

}  // namespace quadrille
