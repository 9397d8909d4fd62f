// SPDX-License-Identifier: Apache-2.0
#include "jobs/capture/capture_options.h"

#include "jobs/options/common_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace quadrille {

void add_flags(CLI::App& app, CaptureOptions& options) {
    add_flags(app, options.generate);
    for (const char* other : {"--save-hidden", "--dry-run"}) {
        app.remove_option(app.get_option(other));
    }
    app.get_option("--out")->description("capture, HDF5");
    app.add_option("--taps", options.taps, "layers to tap [the drafter's]")
        ->delimiter(',')
        ->check(integer(0, kAny))
        ->option_text("N,N...");
    add_text(app, "--generations", options.generations, "a generations file",
             "made if not there [OUT.generations.h5]", "FILE");
}

void finish(CaptureOptions& options, const Invocation& invocation) {
    finish(options.generate, invocation);
    if (options.taps.empty()) {
        need(options.generate.draft != "none", "--taps", "layers (or a drafter's, --draft DIR)");
    }
    if (std::ranges::adjacent_find(options.taps, std::greater_equal<>()) != options.taps.end()) {
        fail_usage(fmt::format("--taps: expected layers in ascending order, found {}",
                               fmt::join(options.taps, ",")));
    }
    options.out = options.generate.out;
    if (options.generations.empty()) options.generations = options.out + ".generations.h5";
    options.generate.out = options.generations;
    options.output_exists = std::exchange(options.generate.output_exists, OutputExists::skip);
}

}  // namespace quadrille
