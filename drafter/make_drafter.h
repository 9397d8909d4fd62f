// SPDX-License-Identifier: Apache-2.0
// The one place that knows which kinds of drafters there are. open_drafter reads a folder's headers
// and says whether its drafter serves the target; make_drafter loads it.
#pragma once

#include "drafter/dflash2/draft_plan.h"
#include "io/checkpoint/made_model.h"
#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "runtime/drafter.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/position.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace quadrille {

struct DrafterChoice {
    std::filesystem::path folder;
    DraftPlacement placement = DraftPlacement::sharded;
    int32_t k = 0;  // drafts per step at most
};

// A drafter that fits its target and is not loaded yet.
struct DrafterFiles {
    DrafterKind kind;
    DraftPlacement placement;
    DraftConfig config;
    DraftPlan plan;  // this rank's slice
    Checkpoint checkpoint;

    // Target layers whose stream means the drafter reads, ascending.
    const std::vector<int64_t>& taps() const { return config.target_layer_ids; }
};

// What rank `rank` of `ranks` needs to know; reads headers only. Errors: read_draft_config's and
// draft_plan.h's. Not collective.
DrafterFiles open_drafter(const DrafterChoice& choice, const ModelConfig& target, int ranks,
                          int rank);

// The same of a drafter without files.
DrafterFiles open_drafter(const DrafterChoice& choice, MadeDrafter made, const ModelConfig& target,
                          int ranks, int rank);

// `target` was built with files.taps(); it, backend, communicator and position outlive the drafter.
// known_tokens: ids from here on are never drafted; 0: the whole vocabulary. Error{input} for
// tensors. Not collective.
std::unique_ptr<Drafter> make_drafter(Backend& backend, Communicator& comm, Position& position,
                                      const DrafterFiles& files, const TargetModel& target,
                                      int64_t known_tokens, const LoadProgress& progress = {});

}  // namespace quadrille
