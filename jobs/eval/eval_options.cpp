// SPDX-License-Identifier: Apache-2.0
#include "jobs/eval/eval_options.h"

#include "jobs/options/common_flags.h"

namespace quadrille {

void add_flags(CLI::App& app, EvalOptions& options) {
    add_text(app, "--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)",
             "DIR");
    add_text(app, "--against", options.against, "a checkpoint folder",
             "checkpoint that the target is compared with", "DIR");
    add_prompts(app, options);
    add_prompt_choice(app, options, "Records");
    const std::string running = "Running";
    add_number(app, "--max-seqs", options.max_seqs, 1, 4096,
               "records at once (or MAX_NUM_SEQS) [16]")
        ->group(running);
    add_machine_flags(app, options,
                      {.tp = "ranks that share one model: 1, 2 or 4 [all]",
                       .backend = "auto, cpu, cuda or check [auto]",
                       .backends = {"auto", "cpu", "cuda", "check"}},
                      running);
    add_text(app, "--json", options.json, "a file", "the table as JSON", "FILE")->group(running);
}

void finish(EvalOptions& options, const Invocation& /*invocation*/) {
    finish_model(options);
    need(!options.prompts.empty() || !options.prompt_texts.empty(), "--prompts",
         "at least one prompts file (or --prompt TEXT)");
}

}  // namespace quadrille
