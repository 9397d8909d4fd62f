// SPDX-License-Identifier: Apache-2.0
// Watches how close a run comes to choosing other experts or other pools: where a result is off,
// a margin near zero tells a coin that fell on its other side from a wrong sum.
#pragma once

#include "kernels/forward_backend.h"

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace quadrille::test {

struct Margin {
    // Between the last that was chosen and the best that was not, smallest over the layers; the
    // pools' relative to the largest score. Infinity: there was no choice.
    double router = std::numeric_limits<double>::infinity();
    double index = std::numeric_limits<double>::infinity();
};

class MarginBackend final : public ForwardBackend {
  public:
    using ForwardBackend::ForwardBackend;

    // By slot: margins of the last row of its sequence in the passes since the last call.
    std::map<int32_t, Margin> take() { return std::exchange(margins_, {}); }

    void kda(const KdaPass& pass, const KdaWeights& weights, const KdaState& state,
             const KdaParams& params, const Rows& rows) override;
    void index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                      View<const float> weight, const IndexCache& cache, const IndexParams& params,
                      const Rows& rows) override;
    void route(View<int32_t> ids, View<float> weights, View<const float> logits, const float* bias,
               float scale, const Rows& rows) override;

  private:
    template <class T>
    std::vector<T> fetch(const T* from, int64_t count) {
        std::vector<T> values(static_cast<size_t>(count));
        download(values.data(), from, count * static_cast<int64_t>(sizeof(T)));
        return values;
    }
    void note(const Rows& rows);

    // The pass's: the last row, the slot and the tokens up to that row of each sequence.
    struct Last {
        int64_t row;
        int32_t slot;
        int64_t visible;
    };
    std::vector<Last> last_;
    std::map<int32_t, Margin> margins_;
};

}  // namespace quadrille::test
