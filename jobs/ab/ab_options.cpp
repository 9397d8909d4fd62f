// SPDX-License-Identifier: Apache-2.0
#include "jobs/ab/ab_options.h"

#include "jobs/options/common_flags.h"

namespace quadrille {

void add_flags(CLI::App& app, AbOptions& options) {
    app.add_option("inputs", options.inputs, "generations of each drafter, the first is the base")
        ->check(not_empty("a file"))
        ->option_text("FILE...");
    add_text(app, "--prompts", options.prompts, "a prompts file",
             "their prompts, for results by /prompts/kind", "FILE");
    add_text(app, "--json", options.json, "a file", "report, JSON", "FILE");
    add_number(app, "--resamples", options.resamples, 100, 1000000,
               "bootstrap samples of the records [10000]");
}

void finish(AbOptions& options, const Invocation& /*invocation*/) {
    if (options.inputs.size() < 2) {
        fail_usage("ab: expected the generations of at least two drafters");
    }
}

}  // namespace quadrille
