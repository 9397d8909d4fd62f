// SPDX-License-Identifier: Apache-2.0
#include "jobs/verify/verify_options.h"

#include "jobs/options/common_flags.h"

namespace quadrille {

void add_flags(CLI::App& app, VerifyOptions& options) {
    app.add_option("results", options.results, "finished generations to check")
        ->check(not_empty("a generations file"))
        ->option_text("FILE");
    GenerateOptions& replay = options.generate;
    add_text(app, "--target", replay.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)",
             "DIR");
    add_prompts(app, replay);
    add_number(app, "--sample", options.sample, 0, kMaxTokens,
               "prompts to replay, spread out, 0: all [32]");
    const std::string running = "Running";
    add_number(app, "--max-seqs", replay.max_seqs, 1, 4096,
               "records at once (or MAX_NUM_SEQS) [16]")
        ->group(running);
    add_machine_flags(app, replay,
                      {.tp = "ranks that share one model; more form groups [all]",
                       .backend = "auto, cpu, cuda or check [auto]",
                       .backends = {"auto", "cpu", "cuda", "check"}},
                      running);
    app.remove_option(app.get_option("--draft-placement"));
    add_text(app, "--json", options.json, "a file", "report, JSON", "FILE")->group(running);
}

void finish(VerifyOptions& options, const Invocation& invocation) {
    need(!options.results.empty(), "results", "a generations file");
    GenerateOptions& replay = options.generate;
    replay.draft = "none";
    replay.out = options.results + ".verify.h5";
    replay.output_exists = OutputExists::overwrite;
    replay.no_text = true;
    finish(replay, invocation);
}

}  // namespace quadrille
