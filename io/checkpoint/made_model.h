// SPDX-License-Identifier: Apache-2.0
// Models without files, for measuring: the shapes, dtypes and names of a released model, with
// random weights. What is small has bytes; a large tensor has none (Tensor::made), and whoever
// places it fills it with random bits of its kind (MadeValues).
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

// Which experts the rows choose: uniform, or with half of them the same for all rows.
enum class MadeRouting : uint8_t { uniform, overlap50 };

struct MadeChoice {
    int64_t layers = 45;
    int32_t routed_bits = 2;  // of the routed experts, EXL3 mcg
    // Projections of attention, dense layers and shared experts, and the head, EXL3 mcg; 0: BF16,
    // as the other matrices are.
    int32_t dense_bits = 0;
    MadeRouting routing = MadeRouting::uniform;
};

struct MadeTarget {
    ModelConfig config;
    Checkpoint checkpoint;
};
struct MadeDrafter {
    DraftConfig config;
    Checkpoint checkpoint;
};

// GLM-5.3-Flash, its first `layers` layers.
MadeTarget make_glm_target(const MadeChoice& choice);
// The DFlash2 drafter of a target of `layers` layers, five at least, BF16.
MadeDrafter make_glm_drafter(int64_t layers);

// Random values that made tensors are filled from: BF16 numbers of a standard deviation of 0.02 for
// a BF16 tensor, else any bits. The same on every machine.
std::vector<uint16_t> made_values(Dtype dtype, int64_t count);

}  // namespace quadrille
