// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/probe_options.h"

#include "jobs/options/common_flags.h"

#include <limits>

namespace quadrille {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

CLI::Option* add_real(CLI::App& app, const char* name, double& value, double high,
                      const char* help) {
    return app.add_option(name, value, help)->check(real(0, false, high))->option_text("X");
}

}  // namespace

void add_flags(CLI::App& app, ProbeOptions& options) {
    add_text(app, "--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)",
             "DIR");
    add_text(app, "--draft", options.drafter, "a drafter's folder or none",
             "drafter (or DFLASH_DRAFT) [none]", "DIR");
    add_text(app, "--capture", options.capture, "a capture file", "capture, HDF5", "FILE");
    add_text(app, "--json", options.json, "a file", "report, JSON", "FILE");
    add_number(app, "--limit", options.limit, 1, kAny, "sequences, the first ones [all]");
    add_real(app, "--validation", options.validation, 0.5, "share held back, as train's [0.05]");
    app.add_option("--seed", options.seed, "of which are held back, as train's [0]")
        ->check(unsigned_integer())
        ->option_text("N");
    add_real(app, "--damping", options.damping, kMost,
             "of ridge maps, of an input's square [1e-3]");
    const char* group = "Drafter";
    add_real(app, "--steps-per-second", options.steps_per_second, kMost,
             "of the target: gives tok/s")
        ->group(group);
    add_text(app, "--refit-fc", options.refit_fc, "a folder", "write the drafter with a new fc",
             "DIR")
        ->group(group);
    add_text(app, "--reference", options.reference, "a capture file",
             "capture of the target the drafter is for", "FILE")
        ->group(group);
    add_machine_flags(app, options,
                      {.tp = "ranks that share one model: 1, 2 or 4 [all]",
                       .backend = "auto, cpu, cuda or check [auto]",
                       .backends = {"auto", "cpu", "cuda", "check"}},
                      "Running");
}

void finish(ProbeOptions& options, const Invocation& /*invocation*/) {
    finish_model(options);
    need(!options.capture.empty(), "--capture", "a capture file");
    if (options.refit_fc.empty() != options.reference.empty()) {
        fail_usage("--refit-fc and --reference: expected both or neither");
    }
    if (options.drafter != "none") return;
    if (!options.refit_fc.empty()) fail_usage("--refit-fc: expected a drafter, found --draft none");
    if (options.steps_per_second > 0) {
        fail_usage("--steps-per-second: expected a drafter, found --draft none");
    }
}

}  // namespace quadrille
