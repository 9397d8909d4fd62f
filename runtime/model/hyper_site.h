// SPDX-License-Identifier: Apache-2.0
// A sublayer's place in the mHC streams: what it reads is mixed from the streams and normed, what
// it writes is mixed back. Formulas: kernels/README.md.
#pragma once

#include "io/checkpoint/model_config.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <string>

namespace quadrille {

HyperParams hyper_params(const ModelConfig& config);

struct HyperSite {
    Matrix fn;
    const float* base = nullptr;
    const float* scale = nullptr;
    const float* norm = nullptr;  // of the sublayer's input
};

enum class SiteKind : uint8_t { attention, ffn };

// `prefix`: of the layer. Error{input} for tensors.
HyperSite load_site(WeightLoader& loader, const ModelConfig& config, const std::string& prefix,
                    SiteKind kind);

// The rows between a sublayer's entry and its exit; one for all sublayers.
class HyperPass {
  public:
    HyperPass(Backend& backend, const ModelConfig& config, int64_t max_rows);

    const HyperParams& params() const { return params_; }
    // Input (m, hidden) of the sublayer; streams (m, streams * hidden). Valid until the next entry.
    View<float> enter(const HyperSite& site, View<const float> streams);
    // streams updated with the sublayer's output `y` (m, hidden); follows its entry.
    void leave(View<float> streams, View<const float> y);

  private:
    Backend& backend_;
    HyperParams params_;
    Array<float> pre_, post_, mix_, in_;
};

}  // namespace quadrille
