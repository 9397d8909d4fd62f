// SPDX-License-Identifier: Apache-2.0
#include "jobs/plan/plan_options.h"

#include "jobs/options/common_flags.h"

#include <algorithm>

namespace quadrille {

void add_flags(CLI::App& app, PlanOptions& options) {
    add_number(app, "--ranks", options.ranks, 1, 4, "ranks that share the model [--tp, or 1]");
    app.add_option("--memory", options.memory, "of a rank's device, GB [of this machine]")
        ->check(real(0, false, 1e6))
        ->option_text("X");
    add_text(app, "--json", options.json, "a file", "the plan as JSON", "FILE");
    add_flags(app, options.generate);
}

void finish(PlanOptions& options, const Invocation& invocation) {
    finish_planned(options.generate, invocation);
    if (options.ranks == 0) options.ranks = std::max<int64_t>(options.generate.tp, 1);
}

}  // namespace quadrille
