// SPDX-License-Identifier: Apache-2.0
// What probe found, as tables and as JSON.
#pragma once

#include "jobs/probe/served.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// How often rows gave the next token.
struct Agreement {
    std::string rows;  // which
    int64_t right = 0;
    int64_t tokens = 0;
};

struct ProbeReport {
    std::string capture;
    int64_t tokens = 0;  // generated
    std::vector<Agreement> agreement;
    std::string drafter;  // folder
    double steps_per_second = 0;
    std::vector<int64_t> held_back;  // sequences
    std::optional<Served> draft, refitted;

    std::string text() const;
    std::string json() const;
};

}  // namespace quadrille
