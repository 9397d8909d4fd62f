// SPDX-License-Identifier: Apache-2.0
// The KDA sublayer: projections, the recurrence with deferred commit (Backend::kda), output
// projection. A rank holds whole heads; its output is a partial sum over ranks.
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/shard.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {

// Activations of one KDA sublayer, shared by all of them. c = channels of this rank's heads.
struct KdaScratch {
    KdaScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
               int64_t max_rows);
    Array<float> qkv;           // (rows, 3c)
    Array<float> f, g, out;     // (rows, c)
    Array<float> f_low, g_low;  // (rows, head_dim)
    Array<float> beta;          // (rows, heads)
};

class KdaLayer {
  public:
    KdaLayer(Backend& backend, WeightLoader& loader, const std::string& prefix,
             const ModelConfig& config, const ShardPlan& plan, int64_t slots, int64_t max_pending);

    // partial (m, hidden): this rank's share of o_proj; in (m, hidden) normed.
    void forward(View<float> partial, View<const float> in, const Rows& rows,
                 KdaScratch& scratch) const;
    // Applies a sequence's pending rows to the stored state.
    void flush(int32_t slot, int32_t pending, bool fresh) const;

    // Stored state of a slot (recurrence and convolution inputs), for comparison.
    std::vector<float> download_state(int32_t slot) const;

  private:
    KdaState state_view() const;

    Backend& backend_;
    KdaParams params_;
    KdaWeights weights_;
    std::vector<std::pair<int64_t, Matrix>> qkv_;  // first column, matrix
    Matrix f_a_, f_b_, g_a_, g_b_, beta_, out_;
    Array<float> state_, conv_, pending_qkv_, pending_decay_, pending_beta_;
};

}  // namespace quadrille
