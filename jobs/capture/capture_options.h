// SPDX-License-Identifier: Apache-2.0
// What capture is asked to do, and its flags: those of generate, whose output is the generations
// file that the capture is made from, and the layers to be tapped.
#pragma once

#include "jobs/generate/generate_options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

struct CaptureOptions {
    GenerateOptions generate;   // finish: generate.out is the generations file
    std::string generations;    // ""; finish: OUT.generations.h5
    std::string out;            // capture.h5
    std::vector<int64_t> taps;  // layers, ascending; empty: the drafter's
    OutputExists output_exists = OutputExists::fail;  // of the capture
};

void add_flags(CLI::App& app, CaptureOptions& options);
void finish(CaptureOptions& options, const Invocation& invocation);

}  // namespace quadrille
