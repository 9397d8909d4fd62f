// SPDX-License-Identifier: Apache-2.0
#include "jobs/score/score_options.h"

#include "io/prompts/option_table.h"
#include "jobs/options/common_flags.h"

namespace quadrille {

void add_flags(CLI::App& app, ScoreOptions& options) {
    add_flags(app, static_cast<GenerateOptions&>(options));
    for (const char* other :
         {"--draft", "--k", "--max-new-tokens", "--max-context", "--ignore-eos", "--no-text",
          "--temperature", "--top-p", "--top-k", "--min-p", "--repetition-penalty", "--logprobs",
          "--seed", "--n", "--accept", "--draft-placement", "--eager", "--save-hidden"}) {
        app.remove_option(app.get_option(other));
    }
    app.get_option("--out")->description("scores, HDF5");
    add_number(app, "--top-n", options.record.logprobs, 0, options::kMaxLogprobs,
               "most likely tokens told beside each [0]")
        ->group("Records");
}

void finish(ScoreOptions& options, const Invocation& invocation) {
    options.draft = "none";
    options.scores = true;
    options.no_text = true;
    options.record.max_new_tokens = 0;
    if (options.record.logprobs < 0) options.record.logprobs = 0;
    finish(static_cast<GenerateOptions&>(options), invocation);
}

}  // namespace quadrille
