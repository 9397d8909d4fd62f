// SPDX-License-Identifier: Apache-2.0
// What a group of ranks did in one start of a run and where its time went: kept in OUT.parts while
// the run lasts, so that the figures of all starts can be added up.
#pragma once

#include "runtime/engine.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace quadrille {

// Seconds of a leader outside of passes.
struct LoopTimes {
    double reading = 0;  // prompts: read, tokenized, handed to the other ranks
    double writing = 0;  // records
    double idle = 0;     // waiting for other groups
};

struct StartFigures {
    EngineStats stats;
    LoopTimes loop;
    double seconds = 0;      // from the process's begin
    double start_up = 0;     // of them, until the first record is asked for
    double collectives = 0;  // of the passes', as the host sees them; graphs hide theirs

    StartFigures& operator+=(const StartFigures& other);
    // Times of `groups` that ran side by side become their means; counts stay sums.
    void average(int64_t groups);
    // The part of `seconds` that no other figure tells.
    double rest() const;
};

// OUT.parts/figures-G-N.json of group G in start N.
std::filesystem::path figures_path(const std::filesystem::path& folder, int group, int64_t start);
std::string figures_json(const StartFigures& figures);
// The sum over starts before `start`, each a mean of its groups. A start that was killed tells what
// it had done a minute before at the latest; a file that cannot be read counts for nothing.
StartFigures earlier_figures(const std::filesystem::path& folder, int64_t start);

}  // namespace quadrille
