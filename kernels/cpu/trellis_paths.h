// SPDX-License-Identifier: Apache-2.0
// TrellisPaths: the inner loops of the search for EXL3 codes, one set per instruction set. All are
// compiled from one source (kernels/cpu/trellis_loops.h) and give the same bits.
#pragma once

#include "kernels/cpu/paths.h"

#include <cstdint>

namespace quadrille::cpu {

// A Viterbi pass over the 256 positions first, first + 1 .. of one tile, modulo 256.
struct TrellisSteps {
    int bits = 0;
    // (nodes/16, symbols, 16): the value of state symbol * nodes + node, in the order of its use.
    const float* table = nullptr;
    const float* values = nullptr;  // (256)
    int first = 0;
    float* cost = nullptr;      // (nodes + 16) in: before the first step, out: behind the last
    float* spare = nullptr;     // (nodes + 16) scratch
    uint8_t* choice = nullptr;  // (256, nodes) out: symbol that leads to a node, by position
};

struct TrellisPaths {
    const char* name = "";
    void (*steps)(const TrellisSteps& steps) = nullptr;
    // rows (16, 16) += sum over j ascending of factor[j][r] * errors[j][c], factor and errors
    // (count, 16), each product fused to its sum.
    void (*feed_back)(float* rows, const float* factor, const float* errors,
                      int64_t count) = nullptr;
};

// Throws Error{device} as paths_of does.
const TrellisPaths& trellis_paths_of(Isa isa);

}  // namespace quadrille::cpu
