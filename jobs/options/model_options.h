// SPDX-License-Identifier: Apache-2.0
// What every job on ranks is told about its models and the machine, a base of its options.
#pragma once

#include "drafter/dflash2/draft_plan.h"
#include "io/checkpoint/made_model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace quadrille {

struct ModelOptions {
    std::string target;                 // checkpoint folder
    std::string draft = "none";         // drafter's folder
    int64_t max_batched_tokens = 7168;  // rows of a prefill pass; finish: a multiple of the grid
    int64_t tp = 0;                     // ranks that share one copy of the model; 0: all
    std::string backend = "auto";       // as make_backend takes it
    std::string comm = "auto";          // auto, mpi, nccl
    DraftPlacement draft_placement = DraftPlacement::sharded;
    bool eager = false;              // no CUDA graphs
    std::optional<MadeChoice> made;  // a model without files in the place of target and draft
};

// --target and --draft.
void add_model_folders(CLI::App& app, ModelOptions& options);

// What a job says of --tp and --backend.
struct MachineHelp {
    const char* tp;
    const char* backend;
    std::vector<std::string> backends;  // that the flag takes
};
// --max-batched-tokens, --tp, --backend, --comm, --draft-placement, --eager, in a group of the
// help.
void add_machine_flags(CLI::App& app, ModelOptions& options, const MachineHelp& help,
                       const std::string& group);

// Error{usage} without a target; rounds max_batched_tokens down.
void finish_model(ModelOptions& options);

// Error{usage} for drafts without a drafter.
void check_drafts(const ModelOptions& options, int64_t k);

}  // namespace quadrille
