// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/probe_options.h"

#include "jobs/options/common_flags.h"

namespace quadrille {

void add_flags(CLI::App& app, ProbeOptions& options) {
    add_text(app, "--target", options.target, "a checkpoint folder", "checkpoint (or EXL3_MODEL)",
             "DIR");
    add_text(app, "--capture", options.capture, "a capture file", "capture, HDF5", "FILE");
    add_number(app, "--limit", options.limit, 1, kAny, "sequences, the first ones [all]");
    add_machine_flags(app, options,
                      {.tp = "ranks that share one model: 1, 2 or 4 [all]",
                       .backend = "auto, cpu, cuda or check [auto]",
                       .backends = {"auto", "cpu", "cuda", "check"}},
                      "Running");
}

void finish(ProbeOptions& options, const Invocation& /*invocation*/) {
    finish_model(options);
    need(!options.capture.empty(), "--capture", "a capture file");
}

}  // namespace quadrille
