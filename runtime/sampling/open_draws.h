// SPDX-License-Identifier: Apache-2.0
// Draws among the ids that top-p and min-p keep of a row, however many, without finding where they
// end. The draw among all ids is also the draw among those kept, if it is one of them; if not, all
// ids from it on are cut, and the next draw is among those before it. Sums decide, which are exact:
// the token is that of a draw among the kept ids. A draw lands at a share of the row's weight that
// is uniform in [0, 1), so 1 + ln(1 / top_p) draws are needed in the mean.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/filter.h"
#include "runtime/model/shard.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/exchange.h"

#include <cstdint>
#include <vector>

namespace quadrille {

class OpenDraws {
  public:
    // `known`: this rank's ids that may be chosen. Collective.
    OpenDraws(Backend& backend, Communicator& comm, Range known, int32_t max_rows);

    struct Row {
        SampleRow on_backend;  // its history in backend memory
        SampleRow on_host;     // the same in host memory; no top-k
        ExpSum total{};        // of all weights, where its filter needs it
        float best = 0.0f;     // the row's largest logit, penalized
    };

    void clear() { rows_.clear(); }
    bool empty() const { return rows_.empty(); }
    int32_t add(const Row& row);
    // Collective: all ranks have added the same rows.
    void run(View<const float> logits);
    const Candidate& chosen(int32_t index) const { return rows_[static_cast<size_t>(index)].drawn; }

  private:
    struct Open {
        Row row;
        Candidate drawn{};
    };

    void draw_once(View<const float> logits);
    bool merge(Open& open, int64_t place) const;

    Backend& backend_;
    Communicator& comm_;
    int32_t first_id_;
    int32_t valid_;
    Exchange exchange_;
    Array<SampleRow> table_;
    std::vector<Open> rows_;
    std::vector<int32_t> open_;  // rows without a token yet
    std::vector<SampleRow> staged_;
    struct {
        int64_t score = 0, id = 0, logit = 0, sums = 0;
    } at_;  // offsets in the exchange
};

}  // namespace quadrille
