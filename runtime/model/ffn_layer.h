// SPDX-License-Identifier: Apache-2.0
// The feed-forward sublayer: a dense gated MLP, or routed experts with a shared one. Intermediate
// channels are split over ranks (every rank touches every expert); the router is replicated.
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/shard.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct FfnScratch {
    FfnScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
               int64_t max_rows);
    Array<float> gate, up;  // (rows, dense intermediate)
    Array<float> router;    // (rows, experts)
    Array<int32_t> ids;     // (rows, experts per token)
    Array<float> weights;   // (rows, experts per token)
};

class FfnLayer {
  public:
    FfnLayer(Backend& backend, WeightLoader& loader, const std::string& prefix, FfnKind kind,
             const ModelConfig& config, const ShardPlan& plan);

    // partial (m, hidden): this rank's share; in (m, hidden) normed.
    void forward(View<float> partial, View<const float> in, const Rows& rows,
                 FfnScratch& scratch) const;

  private:
    Backend& backend_;
    FfnKind kind_;
    float limit_;
    Mlp dense_;
    Matrix router_;
    const float* router_bias_ = nullptr;
    float routed_scale_ = 1.0f;
    std::vector<Mlp> experts_;  // the table in host memory
    MoeWeights moe_;
};

// gate and up split by output, down by input, of one MLP of `width` intermediate channels.
Mlp load_mlp(WeightLoader& loader, const std::string& prefix, int64_t hidden, int64_t width,
             const SegmentedRange& share);

}  // namespace quadrille
