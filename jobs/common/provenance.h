// SPDX-License-Identifier: Apache-2.0
// The origin of results: /provenance of a generations file, and the fingerprint by which a run
// recognises the parts of an earlier one (io/FORMAT.md).
#pragma once

#include "io/h5/h5.h"
#include "io/text/tokenizer.h"
#include "jobs/generate/generate_options.h"
#include "jobs/generate/start_figures.h"
#include "kernels/backend.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {

// Begins the names of fields of /provenance that count and time the last start alone.
inline constexpr std::string_view kLastStart = "last_start_";
// The same of all starts together.
inline constexpr std::string_view kAllStarts = "all_starts_";

std::string utc_now();  // ISO 8601

// What makes two runs the same; `models`: model_identity; `tokenizer` may be nullptr. The number of
// ranks and the batch are not part of it.
h5::Attributes fingerprint(const GenerateOptions& options, const h5::Attributes& models,
                           const Tokenizer* tokenizer, const std::string& prompts_digest, int64_t k,
                           int64_t context, const Backend& backend);

// What only the run knows.
struct RunFacts {
    std::string start;                   // utc_now() at its start
    std::vector<std::string> hosts;      // of each rank
    std::vector<std::string> devices;    // of each rank
    std::string comm;                    // name of the communicator
    std::vector<std::string> libraries;  // of the backend and the communicator
    StartFigures last = {};              // of the last start: times are means of its groups
    StartFigures all = {};               // of all starts
    int64_t max_seqs = 0;                // records at once
    bool graphs = false;                 // decode steps were replayed from recordings
    int64_t groups = 1;                  // of ranks
    int64_t restarts = 0;
    int64_t records_computed = 0;
};

// `fingerprint` and what happened to come together with it.
h5::Attributes provenance(const GenerateOptions& options, h5::Attributes fingerprint,
                          const RunFacts& facts);

}  // namespace quadrille
