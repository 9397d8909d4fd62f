// SPDX-License-Identifier: Apache-2.0
// How often rows of the target's width give the next token through its head, on the ranks that
// share the target.
#pragma once

#include "jobs/common/model_session.h"
#include "kernels/buffer.h"
#include "runtime/sampling/best_over_ranks.h"

#include <cstdint>
#include <vector>

namespace quadrille {

class NextToken {
  public:
    // The session's models are loaded, and both outlive this. `rows`: at once, at most.
    NextToken(ModelSession& session, int64_t rows);

    // Rows (count, hidden); `normed`: the final norm is behind them. How many of those with a mask
    // other than 0 give their token of `next`. Collective over the group.
    int64_t right(const std::vector<float>& rows, bool normed, const int32_t* next,
                  const uint8_t* mask);

  private:
    ModelSession& session_;
    BestOverRanks best_;
    Array<float> rows_, logits_, values_;
    Array<int32_t> ids_;
};

}  // namespace quadrille
