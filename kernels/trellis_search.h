// SPDX-License-Identifier: Apache-2.0
// The search's constants, which every encoder must use alike (kernels/trellis_encoder.h).
//
// A node is the 16 - bits bits that two neighbouring states share; the state of symbol k that leads
// to node `out` is k * nodes + out and comes from node state >> bits. The cost of a path is fp32:
//   d = decoded(state) - value;  cost = fma(d, d, cost of the node it comes from)
// whose low `bits` bits are then replaced by k. The smallest such number is the node's cost, its
// low bits are the choice; ties cannot be.
#pragma once

#include "kernels/exl3.h"

#include <cstdint>

namespace quadrille::trellis {

inline constexpr int kNodesMost = 32768;
// The free first pass begins and ends here: the seam, position 0, has half a tile on either side.
inline constexpr int kMiddle = 128;
inline constexpr float kUnreached = 1e30f;  // cost of nodes that a tied start excludes
// Values beyond it are encoded as if they were it: no codebook reaches 4.
inline constexpr float kLargestValue = 64.0f;

constexpr int nodes(int bits) {
    return 65536 >> bits;
}

}  // namespace quadrille::trellis
