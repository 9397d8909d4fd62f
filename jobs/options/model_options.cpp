// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/model_options.h"

#include "jobs/options/common_flags.h"
#include "runtime/prefill_plan.h"

#include <fmt/format.h>

namespace quadrille {

void add_model_folders(CLI::App& app, ModelOptions& options) {
    add_text(app, "--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)",
             "DIR");
    add_text(app, "--draft", options.draft, "a drafter's folder or none",
             "drafter (or DFLASH_DRAFT) [none]", "DIR");
}

void add_machine_flags(CLI::App& app, ModelOptions& options, const MachineHelp& help,
                       const std::string& group) {
    add_number(app, "--max-batched-tokens", options.max_batched_tokens, kPrefillGrid, kMaxTokens,
               "prefill rows (or MAX_NUM_BATCHED_TOKENS) [7168]")
        ->group(group);
    add_number(app, "--tp", options.tp, 1, kAny, help.tp)->group(group);
    app.add_option("--backend", options.backend, help.backend)
        ->check(one_of(help.backends))
        ->option_text("NAME")
        ->group(group);
    app.add_option("--comm", options.comm, "auto, mpi or nccl [auto]")
        ->check(one_of({"auto", "mpi", "nccl"}))
        ->option_text("NAME")
        ->group(group);
    app.add_option_function<std::string>(
           "--draft-placement",
           [&options](const std::string& where) {
               options.draft_placement =
                   where == "sharded" ? DraftPlacement::sharded : DraftPlacement::replicated;
           },
           "sharded or replicated drafter [sharded]")
        ->check(one_of({"sharded", "replicated"}))
        ->option_text("WHERE")
        ->group(group);
    app.add_flag("--eager", options.eager, "no CUDA graphs (or CUDA_GRAPHS=0)")->group(group);
}

void finish_model(ModelOptions& options) {
    need(!options.target.empty(), "--target", "a checkpoint folder (or EXL3_MODEL)");
    options.max_batched_tokens = prefill_floor(options.max_batched_tokens);
}

void check_drafts(const ModelOptions& options, int64_t k) {
    if (options.draft != "none" || options.made || k <= 0) return;
    fail_usage(fmt::format("--k: expected 0 without a drafter (--draft none), found {}", k));
}

}  // namespace quadrille
