// SPDX-License-Identifier: Apache-2.0
// eval: how well a checkpoint predicts given texts. Every token of a record but the first is
// scored, teacher-forced: negative log-likelihood (NLL, natural log), perplexity, and how often the
// token is the most likely one, by kind (/prompts/kind) and in all. With --against also how far its
// distributions are from another checkpoint's: KL divergence over the vocabulary, same choice.
#pragma once

#include "jobs/eval/eval_options.h"

namespace quadrille {

int run_eval(const EvalOptions& options, const RankStart& start);

}  // namespace quadrille
