// SPDX-License-Identifier: Apache-2.0
// The collective of a pass (docs/design.md §6): the ranks' partial products, summed on every rank
// as one balanced tree over ranks, ((0 + 1) + (2 + 3)), so that 1, 2 and 4 ranks give the same
// bits. Few rows: every rank gathers all partials and sums them. Many rows: each rank sums a slice
// of the rows and the sums are gathered, half the traffic at 4 ranks. Both ways, the same sums.
#pragma once

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/ranks/comm.h"

#include <cstdint>

namespace quadrille {

class TreeReduce {
  public:
    enum class Way { by_size, gather, scatter };

    // 1, 2 or 4 ranks; `backend` and `comm` outlive this and share their memory.
    TreeReduce(Backend& backend, Communicator& comm, int64_t max_rows, int64_t width,
               Way way = Way::by_size);

    // out, partial (m, width) f32, gapless, m <= max_rows, the same on every rank. May be one and
    // the same. Collective.
    void sum(View<float> out, View<const float> partial);

  private:
    void sum_gathered(View<float> out, View<const float> partial);
    void sum_scattered(View<float> out, View<const float> partial);
    bool scatters(int64_t rows) const;

    Backend& backend_;
    Communicator& comm_;
    int64_t max_rows_;
    int64_t width_;
    Way way_;
    Array<float> parts_;   // what the other ranks send: (size * rows, width)
    Array<float> padded_;  // rows rounded up to whole slices
};

}  // namespace quadrille
