// SPDX-License-Identifier: Apache-2.0
// Which thread blocks share an EXL3 product. Nothing here changes a result.
#include "kernels/cuda/exl3_product.h"

#include <algorithm>

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

// The cheapest cut for tiles of plan.groups row groups.
void cut(Exl3Plan& plan, const Work& work, bool may_halve) {
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
}

}  // namespace

Exl3Plan plan_exl3(const Matrix& w, int64_t m, int32_t processors) {
    Exl3Plan plan;
    plan.groups = groups_for(m);
    const int64_t blocks = w.n_padded / exl3::kBlock;
    const int64_t columns = blocks * ceil_div(m, plan.rows());
    const Work work{w, std::max<int64_t>(columns, 1), blocks, std::min<int64_t>(m, plan.rows()),
                    processors};
    cut(plan, work, true);
    // Rotating again in every column block is cheaper than one more launch, up to a point.
    const double rotated = leaves_of(plan, work) * static_cast<double>(plan.column_parts()) *
                           static_cast<double>(work.rows);
    plan.rotate_inside = plan.groups <= kRotateGroups && rotated * kRotateRow <= kRotateKernel &&
                         team_blocks(plan) <= input_blocks(plan.groups);
    // Behind a kernel that rotates, the thread blocks of a small product would gather on some of
    // the multiprocessors.
    plan.alone = !plan.rotate_inside && columns * plan.ranks * plan.column_parts() <= processors;
    return plan;
}

Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           int32_t processors, int32_t groups) {
    Exl3Plan plan;
    const int64_t busy = std::clamp<int64_t>(pairs, 1, std::max(experts, 1));
    const int64_t rows = ceil_div(pairs, busy);
    plan.groups = groups > 0 ? groups : groups_for(rows);
    const int64_t blocks = w.n_padded / exl3::kBlock * members;
    const int64_t tiles = busy + (std::max(pairs, busy) - busy) / plan.rows();
    const Work work{w, std::max<int64_t>(blocks * busy, 1), blocks * tiles,
                    std::min<int64_t>(rows, plan.rows()), processors};
    cut(plan, work, false);
    return plan;
}

Exl3Need exl3_need(const Exl3Plan& plan, const Matrix& w, int32_t column_blocks, int64_t tiles,
                   int32_t members) {
    const int64_t cells = column_blocks * tiles * members;
    return {cells * units_of(plan.mode, w) * plan.rows() * exl3::kBlock, cells};
}

void apply_plan(Exl3Product& args, const Exl3Plan& plan, const Matrix& w) {
    args.mode = plan.mode;
    args.units = units_of(plan.mode, w);
    args.ranks = plan.ranks;
    args.teams = plan.teams;
    args.team_units = plan.team_units;
    args.halves = plan.halves;
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
