// SPDX-License-Identifier: Apache-2.0
// Which slice of every matrix a rank holds: pure functions of the config, the rank count and the
// rank. Widths are cut in blocks of 128 (the Hadamard block of EXL3); a row-parallel width is cut
// into kSegments segments first and a rank holds whole segments, so that 1, 2 and 4 ranks sum the
// same numbers in the same tree (docs/design.md §6, §7).
#pragma once

#include "io/checkpoint/matrix_slice.h"
#include "io/checkpoint/model_config.h"
#include "kernels/exl3.h"
#include "kernels/matrix.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

inline constexpr int64_t kShardBlock = exl3::kBlock;

// A row-parallel width as one rank holds it: channels `range` of the whole, and the segments inside
// it, relative to range.begin.
struct SegmentedRange {
    Range range;
    int32_t segments = 1;
    std::array<int64_t, kSegments + 1> segment{};
};
SegmentedRange segment_share(int64_t width, int ranks, int rank);

// Everything rank `rank` of `ranks` holds of a target.
struct ShardPlan {
    int rank = 0;
    int ranks = 1;
    SegmentedRange kda;     // channels of all KDA heads
    SegmentedRange mla;     // value channels of all MLA heads
    SegmentedRange dense;   // intermediate channels of dense MLPs
    SegmentedRange expert;  // of a routed expert
    SegmentedRange shared;  // of the shared expert
    Range vocab;            // rows of the head

    Range kda_heads;
    Range mla_heads;
};
// Throws Error{usage} listing every dimension that `ranks` ranks cannot divide, and the legal
// counts.
ShardPlan plan_shards(const ModelConfig& config, int ranks, int rank);

// How many ids of `vocab`, a rank's rows of the head, lie below `known`: those that may be chosen.
int32_t known_ids(const Range& vocab, int64_t known);

// One line per dimension that cannot be divided over `ranks` ranks; empty: `ranks` is legal.
std::vector<std::string> shard_violations(const ModelConfig& config, int ranks);

}  // namespace quadrille
