// SPDX-License-Identifier: Apache-2.0
// Sublayer: one attention or feed-forward sublayer of a model, loaded alone, on one rank.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/ffn_layer.h"
#include "runtime/model/hyper_site.h"
#include "runtime/model/kda_layer.h"
#include "runtime/model/mla_layer.h"
#include "runtime/model/target_model.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace quadrille {

// Which sublayer of which model.
struct SublayerPlace {
    const ModelConfig& config;
    std::string prefix;  // of the layer, "model.language_model.layers.3."
    int64_t layer = 0;
    SiteKind kind = SiteKind::attention;
};

class Sublayer {
  public:
    // Error{input} for tensors.
    Sublayer(Backend& backend, const Checkpoint& checkpoint, const SublayerPlace& place,
             const ModelLimits& limits);

    void forward(View<float> streams, const Rows& rows);
    const WeightLoader& loader() const { return loader_; }

  private:
    ShardPlan plan_;
    WeightLoader loader_;
    HyperPass hyper_;
    HyperSite site_;
    Array<float> out_;
    std::optional<KdaLayer> kda_;
    std::optional<MlaLayer> mla_;
    std::optional<FfnLayer> ffn_;
    std::unique_ptr<KdaScratch> kda_scratch_;
    std::unique_ptr<MlaScratch> mla_scratch_;
    std::unique_ptr<FfnScratch> ffn_scratch_;
};

}  // namespace quadrille
