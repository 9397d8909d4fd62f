// SPDX-License-Identifier: Apache-2.0
#include "drafter/make_drafter.h"

#include "drafter/dflash2/dflash2.h"
#include "kernels/error.h"

#include <utility>

namespace quadrille {

DrafterFiles open_drafter(const DrafterChoice& choice, const ModelConfig& target, int ranks,
                          int rank) {
    const DrafterKind kind = read_drafter_kind(choice.folder);
    DraftConfig config = read_draft_config(choice.folder);
    check_draft_config(config, target, choice.k);
    const DraftPlan plan = plan_draft(config, choice.placement, ranks, rank);
    Checkpoint checkpoint(choice.folder);
    check_draft_tensors(config, checkpoint);
    return {.kind = kind,
            .placement = choice.placement,
            .config = std::move(config),
            .plan = plan,
            .checkpoint = std::move(checkpoint)};
}

DrafterFiles open_drafter(const DrafterChoice& choice, MadeDrafter made, const ModelConfig& target,
                          int ranks, int rank) {
    check_draft_config(made.config, target, choice.k);
    check_draft_tensors(made.config, made.checkpoint);
    const DraftPlan plan = plan_draft(made.config, choice.placement, ranks, rank);
    return {.kind = DrafterKind::dflash,
            .placement = choice.placement,
            .config = std::move(made.config),
            .plan = plan,
            .checkpoint = std::move(made.checkpoint)};
}

std::unique_ptr<Drafter> make_drafter(Backend& backend, Communicator& comm, Position& position,
                                      const DrafterFiles& files, const TargetModel& target,
                                      int64_t known_tokens, const LoadProgress& progress) {
    switch (files.kind) {
        case DrafterKind::dflash:
            return std::make_unique<DFlash2>(backend, comm, position, files.config,
                                             files.checkpoint, target,
                                             DraftOptions{.placement = files.placement,
                                                          .known_tokens = known_tokens,
                                                          .progress = progress});
    }
    throw Error(ErrorKind::internal, "make_drafter: expected a kind of drafter");
}

}  // namespace quadrille
