// SPDX-License-Identifier: Apache-2.0
// Which thread blocks share an EXL3 product. Nothing here changes a result.
#include "kernels/cuda/exl3_product.h"

#include <algorithm>
#include <cmath>

namespace quadrille::cuda {

namespace {

constexpr int64_t kPartialLimit = int64_t{64} << 20;  // floats of sums, beyond which units are long

// Where inputs are rotated, in microseconds of an H200: 128 inputs of a row by a multiprocessor
// (about 50 instructions of a warp), against a kernel before the product; and the most row groups
// of a product that rotates.
constexpr double kRotateRow = 0.01;
constexpr double kRotateKernel = 3.5;
constexpr int32_t kRotateGroups = 2;
// Microseconds that the teams of a thread block in halves take to add their leaves.
constexpr double kHalvesSum = 0.3;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int32_t groups_for(int64_t rows) {
    if (rows <= 8) return 1;
    if (rows <= 16) return 2;
    if (rows <= 32) return 4;
    return 8;
}

// What is cut: `columns` times 128 columns (of all tiles and matrices) of w, `rows` rows each.
// There is scratch for `room` times 128 columns.
struct Work {
    const Matrix& w;
    int64_t columns;
    int64_t room;
    int64_t rows;
    int32_t processors;
};

int32_t blocks_of(const Matrix& w) {
    return segment_end(w, w.segments - 1);
}

// The most blocks of 128 inputs of a team.
int64_t team_blocks(const Exl3Plan& plan) {
    return plan.halves ? kLeafBlocks : int64_t{plan.team_units} * unit_span(plan.mode);
}

// Thread blocks that one multiprocessor works through, times the leaves of one.
double leaves_of(const Exl3Plan& plan, const Work& work) {
    const int64_t blocks = work.columns * plan.ranks * plan.column_parts();
    const double each = static_cast<double>(blocks) / work.processors;
    const double rounds = each <= (plan.groups >= 4 ? 8 : 4)
                              ? static_cast<double>(ceil_div(blocks, work.processors))
                              : 1.05 * each;
    return rounds * blocks_of(work.w) / (plan.ranks * plan.column_parts());
}

// Microseconds beyond what every launch takes, fitted to an H200: the leaves (less at a time where
// few warps share a multiprocessor), the start and end of thread blocks, and the sums at the end.
double cost_of(const Exl3Plan& plan, const Work& work) {
    const double scale = plan.groups == 1   ? 1.0
                         : plan.groups == 2 ? 1.6
                         : plan.groups == 4 ? 2.2
                                            : 3.2;
    const auto blocks = static_cast<double>(work.columns * plan.ranks * plan.column_parts());
    const double rounds = std::max(blocks / work.processors, 1.0);
    const int32_t teams = plan.teams / plan.column_parts();  // of eight warps
    const double together = teams * std::min(rounds, 2.0);
    const auto units = static_cast<double>(units_of(plan.mode, work.w));
    const auto rows = static_cast<double>(std::min<int64_t>(work.rows, 8));
    // Two teams hide more latency, thread blocks of one team have more registers
    // (exl3_product.cuh).
    const double one_team = teams == 2         ? 1.0
                            : plan.groups >= 4 ? 1.05
                            : rounds > 4.0     ? 0.92
                            : plan.groups == 1 ? 1.0 + 0.03 * rows
                                               : 1.05;
    // In halves the inputs are rotated twice as often.
    const double again = kRotateRow * leaves_of(plan, work) * static_cast<double>(work.rows);
    const double sums = (plan.mode == ProductMode::leaf ? 0.6 + 0.045 * units : 0.05 * units) +
                        (plan.halves ? kHalvesSum + again : 0.0);
    return scale * (0.58 * one_team * leaves_of(plan, work) * (1.0 + 0.35 / together) +
                    0.3 * rounds + sums);
}

// The cheapest cut for tiles of plan.groups row groups, and its cost.
double cut(Exl3Plan& plan, const Work& work, bool may_halve) {
    double least = 0.0;
    const auto consider = [&](ProductMode mode, int32_t teams, int32_t team_units,
                              bool halves = false) {
        Exl3Plan other = plan;
        other.mode = mode;
        other.teams = teams;
        other.team_units = team_units;
        other.halves = halves;
        const int32_t units = std::max(units_of(mode, work.w), 1);
        const int64_t partial = work.room * units * plan.rows() * exl3::kBlock;
        if (mode != ProductMode::segment && partial > kPartialLimit) return;
        other.ranks = static_cast<int32_t>(ceil_div(units, other.units_of_rank()));
        const double cost = cost_of(other, work);
        if (least > 0.0 && cost >= least) return;
        least = cost;
        plan = other;
    };
    const int32_t groups = units_of(ProductMode::group, work.w);
    for (int32_t teams = exl3_teams(work.w.bits, plan.groups); teams >= 1; --teams) {
        for (int32_t units = 1; units * teams <= std::max(groups, teams); units *= 2) {
            consider(ProductMode::group, teams, units);
        }
        consider(ProductMode::leaf, teams, 1);
        consider(ProductMode::leaf, teams, 2);
    }
    if (may_halve && plan.groups <= kHalvesGroups) {
        consider(ProductMode::group, kGroupLeaves, 1, true);
    }
    // Adding to a sum in memory takes longer than adding them all at the end.
    if (least == 0.0) consider(ProductMode::segment, 1, std::max(work.w.segments, 1));
    return least;
}

// Of the kernel of many rows (exl3_large.cuh), in microseconds on an H200. Estimated from its
// instructions, not yet fitted to measurements.
struct LargeCost {
    double decode = 1.0;    // the least of a leaf: its 256 x 128 weights
    double barrier = 0.15;  // of a leaf
    double quarter = 0.48;  // of a leaf: the MMAs of 32 rows
    double start = 3.0;     // of a thread block: its first weights and inputs
    double finish = 0.6;    // of a segment: the output transform of 32 rows
    double write = 0.1;     // of a unit: the sums of 32 rows to memory
    double end = 3.0;       // the kernel that adds them,
    double floats = 0.7e6;  // which reads so many in a microsecond
};
constexpr LargeCost kLarge;
constexpr int64_t kLargeFrom = 65;         // rows
constexpr int64_t kLargeFromExperts = 33;  // of a busy expert
constexpr double kLargeFewRounds = 8.0;    // so many end together, more overlap

// Tiles of kLargeRows rows over `columns` blocks of columns, `rows` rows in all.
double cost_of_large(const Exl3Plan& plan, const Matrix& w, double tiles, double rows,
                     double columns, int32_t processors) {
    const double quarters = std::clamp(rows / tiles / 32.0, 1.0, kLargeRows / 32.0);
    const double blocks = tiles * std::ceil(columns / 2.0) * plan.ranks;
    const double each = blocks / processors;
    const double rounds = each <= kLargeFewRounds ? std::ceil(each) : each + 0.5;
    const double leaf = kLarge.barrier + std::max(kLarge.decode, kLarge.quarter * quarters);
    const double leaves = std::ceil(static_cast<double>(blocks_of(w)) / plan.ranks);
    const double units = units_of(ProductMode::group, w);
    if (plan.ranks == 1) {
        return rounds * (kLarge.start + leaves * leaf + w.segments * kLarge.finish * quarters);
    }
    return rounds * (kLarge.start + leaves * leaf + plan.team_units * kLarge.write * quarters) +
           kLarge.end + units * rows * columns * exl3::kBlock / kLarge.floats;
}

// The whole inputs to a thread block.
Exl3Plan large_plan(const Matrix& w) {
    Exl3Plan plan;
    plan.large = true;
    plan.groups = kLargeGroups;
    plan.mode = ProductMode::segment;
    plan.team_units = std::max(units_of(plan.mode, w), 1);
    return plan;
}

// Replaces a plan of the given cost where the kernel of many rows takes less.
void consider_large(Exl3Plan& plan, double cost, const Matrix& w, int64_t m,
                    const Exl3Device& device) {
    if (m < kLargeFrom || device.shared < large_shared_bytes(w.bits)) return;
    const auto rows = static_cast<double>(m);
    const auto tiles = ceil_div(m, kLargeRows);
    const int64_t columns = w.n_padded / exl3::kBlock;
    const int32_t groups = units_of(ProductMode::group, w);
    const auto consider = [&](const Exl3Plan& other) {
        const double found = cost_of_large(other, w, static_cast<double>(tiles), rows,
                                           static_cast<double>(columns), device.processors);
        if (found >= cost) return;
        cost = found;
        plan = other;
    };
    Exl3Plan large = large_plan(w);
    consider(large);
    if (tiles * columns * groups * kLargeRows * exl3::kBlock > kPartialLimit) return;
    large.mode = ProductMode::group;
    for (large.team_units = 1; large.team_units < groups; ++large.team_units) {
        large.ranks = static_cast<int32_t>(ceil_div(groups, large.team_units));
        consider(large);
    }
}

}  // namespace

Exl3Plan plan_exl3(const Matrix& w, int64_t m, const Exl3Device& device) {
    Exl3Plan plan;
    plan.groups = groups_for(m);
    const int64_t blocks = w.n_padded / exl3::kBlock;
    const int64_t columns = blocks * ceil_div(m, plan.rows());
    const Work work{w, std::max<int64_t>(columns, 1), blocks, std::min<int64_t>(m, plan.rows()),
                    device.processors};
    const double cost = cut(plan, work, true);
    // Rotating again in every column block is cheaper than one more launch, up to a point.
    const double rotated = leaves_of(plan, work) * static_cast<double>(plan.column_parts()) *
                           static_cast<double>(work.rows);
    plan.rotate_inside = plan.groups <= kRotateGroups && rotated * kRotateRow <= kRotateKernel &&
                         team_blocks(plan) <= input_blocks(plan.groups);
    // Behind a kernel that rotates, the thread blocks of a small product would gather on some of
    // the multiprocessors.
    plan.alone =
        !plan.rotate_inside && columns * plan.ranks * plan.column_parts() <= device.processors;
    consider_large(plan, cost, w, m, device);
    return plan;
}

Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           const Exl3Device& device, int32_t groups) {
    if (groups == kLargeGroups) return large_plan(w);
    Exl3Plan plan;
    const int64_t busy = std::clamp<int64_t>(pairs, 1, std::max(experts, 1));
    const int64_t rows = ceil_div(pairs, busy);
    plan.groups = groups > 0 ? groups : groups_for(rows);
    const int64_t blocks = w.n_padded / exl3::kBlock * members;
    const int64_t tiles = busy + (std::max(pairs, busy) - busy) / plan.rows();
    cut(plan,
        {w, std::max<int64_t>(blocks * busy, 1), blocks * tiles,
         std::min<int64_t>(rows, plan.rows()), device.processors},
        false);
    if (groups > 0 || rows < kLargeFromExperts || device.shared < large_shared_bytes(w.bits)) {
        return plan;
    }
    // An expert's last tile is half full.
    const auto per_expert = static_cast<double>(rows);
    const auto tiles_of = [&](const Exl3Plan& any) {
        return static_cast<double>(busy) * std::max(1.0, per_expert / any.rows() + 0.5);
    };
    const double all = static_cast<double>(busy) * (per_expert + 16.0);
    const Exl3Plan large = large_plan(w);
    const double small_columns = static_cast<double>(blocks) * tiles_of(plan);
    const Work work{w, static_cast<int64_t>(small_columns), 0, plan.rows(), device.processors};
    const double large_cost = cost_of_large(large, w, tiles_of(large), all,
                                            static_cast<double>(blocks), device.processors);
    return large_cost < cost_of(plan, work) ? large : plan;
}

Exl3Need exl3_need(const Exl3Plan& plan, const Matrix& w, int32_t column_blocks, int64_t tiles,
                   int32_t members, bool by_segment) {
    const int64_t cells = column_blocks * tiles * members;
    const int64_t floats = int64_t{plan.rows()} * exl3::kBlock;
    if (plan.large && plan.ranks == 1) {
        // The third of four segments waits for the fourth.
        return {w.segments == 4 && !by_segment ? cells * floats : 0, 0};
    }
    return {cells * units_of(plan.mode, w) * floats, plan.large ? 0 : cells};
}

void apply_plan(Exl3Product& args, const Exl3Plan& plan, const Matrix& w) {
    args.mode = plan.mode;
    args.units = plan.large && plan.ranks == 1 ? 1 : units_of(plan.mode, w);
    args.ranks = plan.ranks;
    args.teams = plan.teams;
    args.team_units = plan.team_units;
    args.halves = plan.halves;
    if (plan.large) return;
    const auto steps = static_cast<int32_t>(std::min<int64_t>(blocks_of(w), team_blocks(plan)));
    args.stages = std::clamp(steps, 1, ring_stages(w.bits, plan.groups));
    args.input_blocks = std::clamp(steps, 1, input_blocks(plan.groups));
}

int32_t shared_bytes(const Exl3Product& args, int32_t groups, const Matrix& w) {
    const int32_t ring = team_warps(args.halves) * args.stages * 8 * 4 * exl3::tile_words(w.bits);
    const int32_t inputs = args.input_blocks * 8 * groups * 32 * 8;
    const int32_t rows = groups <= 2 ? w.segments * 8 * groups * exl3::kBlock * 4 : 0;
    const int32_t leaves = args.halves ? kGroupLeaves * 8 * groups * kHalfStride * 4 : 0;
    return std::max(args.teams * (ring + inputs) + leaves, rows);
}

}  // namespace quadrille::cuda
