// SPDX-License-Identifier: Apache-2.0
// What a pack consists of: files in the order in which they are made, the tensors of each, and
// which matrices are quantized together. A pure function of the source's names and shapes and of
// the options: the number of ranks is not in it.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "jobs/quantize/quantize_options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct PlannedMatrix {
    std::string module;
    int64_t n = 0;
    int64_t k = 0;
};

// Matrices that one rank quantizes, and which share what the calibration gives for them.
struct PlannedTask {
    std::string name;  // of its file in the folder of parts: no slashes
    WeightClass kind = WeightClass::routed;
    int64_t expert = -1;  // of routed experts
    int64_t bits = 0;
    std::vector<PlannedMatrix> matrices;
    int64_t weights() const;
};

enum class UnitKind : uint8_t { embedding, attention, ffn, head, mtp, other };

// One file of the pack.
struct PlannedUnit {
    UnitKind kind = UnitKind::other;
    int64_t layer = -1;
    std::string file;                    // "model-00003-of-00019.safetensors"
    std::vector<const Tensor*> tensors;  // of the source
    std::vector<PlannedTask> tasks;
    int64_t weights() const;  // that are quantized
};

struct PackPlan {
    std::string prefix;  // of the text model
    std::vector<PlannedUnit> units;
    // Modules that stay as they are, whatever bits were asked for: no rank could load them.
    std::vector<std::string> kept;

    int64_t weights() const;  // that are quantized
    int64_t bytes() const;    // of the pack, without headers
};

// Tensors live as long as `source`. Error{input}: the source is quantized already, or --layer-bits
// names a layer without routed experts.
PackPlan plan_pack(const Checkpoint& source, const ModelConfig& config,
                   const QuantizeJobOptions& options);

}  // namespace quadrille
