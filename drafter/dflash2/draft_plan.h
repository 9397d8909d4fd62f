// SPDX-License-Identifier: Apache-2.0
// What can be said about a drafter before its weights are read: whether it belongs to the target,
// whether its checkpoint holds what its config promises, and which slice of it each rank holds.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "runtime/model/shard.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

// One module of a drafter: a matrix under any of its storage forms, or a tensor by itself.
struct DraftModule {
    std::string name;
    std::vector<int64_t> shape;
    bool matrix = true;  // `name` + .weight or EXL3 parts; false: a tensor of that very name
};
// All that a drafter of this config has.
std::vector<DraftModule> draft_modules(const DraftConfig& config);

// sharded: layers are split like the target's. replicated: every rank holds whole layers. The head
// is the target's and split either way. Both give the same bits.
enum class DraftPlacement : uint8_t { sharded, replicated };

// Throws Error{input} naming the field where the drafter was made for another target, and
// Error{usage} where `k` drafts per step do not fit its block. Reads no files.
void check_draft_config(const DraftConfig& draft, const ModelConfig& target, int64_t k);

// Throws Error{input} naming the first tensor that is missing, has another shape than the config
// says, or is of no use to it (a selector or convolution that the config does not announce would be
// a silent loss of acceptance). Reads headers only.
void check_draft_tensors(const DraftConfig& draft, const Checkpoint& checkpoint);

// What one rank holds of every layer. fc, norms, convolutions and the selector are whole
// everywhere.
struct DraftPlan {
    bool partial = false;      // products of o_proj and down_proj are partial sums over the ranks
    SegmentedRange attention;  // inputs of o_proj
    SegmentedRange mlp;        // intermediate channels
    Range heads, kv_heads;     // kv_heads: those its own heads read
};
// `ranks`: 1, 2 or 4. Throws Error{usage} naming the dimension that they do not divide.
DraftPlan plan_draft(const DraftConfig& draft, DraftPlacement placement, int ranks, int rank);

}  // namespace quadrille
