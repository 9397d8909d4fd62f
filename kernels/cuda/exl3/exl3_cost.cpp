// SPDX-License-Identifier: Apache-2.0
// The constants are fitted to the times of some 3000 products on an H200: matrices of 2, 4 and 6
// bits, 1024 to 8192 inputs, 1024 to 77440 outputs, 1 to 2048 rows. Bits make little difference:
// what takes the time is to make weights of them, not to read them.
#include "kernels/cuda/exl3/exl3_cost.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

// A leaf of a team of 8 warps (128 x 128 weights), and what every 8 rows add to it: with several
// teams on a multiprocessor their instructions add up, but none is quicker than its own chain of
// them.
constexpr double kLeaf = 0.58;
constexpr double kLeafGroup = 0.135;
constexpr double kLatency = 0.69;
constexpr double kLatencyGroup = 0.27;
// Thread blocks that start together wait for their first weights and inputs; a few instructions of
// each do not overlap.
constexpr double kStart = 1.9;
constexpr double kBlockStart = 0.03;
// A multiprocessor writes a row of a unit's sums to memory.
constexpr double kWrite = 0.0525;
// At the end a warp waits for the sums of up to 8 units of some rows together, or of more units of
// one row (which takes too many registers to be quick).
constexpr double kArrive = 0.82;  // unless it waits for them (Exl3Plan::waits)
constexpr double kGather = 0.44;
constexpr double kGatherMany = 1.5;
constexpr int32_t kGatherUnits = 8;
constexpr int32_t kGatherManyUnits = 32;

// 128 inputs of a row rotated by a multiprocessor (about 50 instructions of a warp), against a
// kernel before the product, and the inputs that it rotates in a microsecond.
constexpr double kRotateRow = 0.0071;
constexpr double kRotateKernel = 1.74;
constexpr double kRotateExperts = 3.0;  // the kernel looks for its tile, matrix and rows first
constexpr double kRotateGated = 0.02;   // with swiglu, about 160 instructions
constexpr double kRotateInputs = 0.30e6;

// Large tiles. A thread block waits for its first weights and inputs; a leaf of 256 columns is
// decoded, and multiplied by 32 rows at a time; the outputs of 32 rows are transformed, a segment
// after another. With several ranks a kernel at the end does that instead, which moves so many
// floats in a microsecond.
constexpr double kLargeStart = 1.46;
constexpr double kLargeLeaf = 1.19;
constexpr double kLargeQuarter = 0.59;
constexpr double kLargeFinish = 4.6;
constexpr double kLargeEndFloats = 0.705e6;
constexpr int64_t kQuarterRows = 32;
// Tiles of 16 rows: a leaf of 256 columns with several thread blocks on a multiprocessor, and of
// one alone; what of a thread block does not overlap; the outputs of 8 rows. The kernel at the end
// takes its time however few the floats.
constexpr double kWideLeaf = 1.28;
constexpr double kWideLatency = 1.44;
constexpr double kWideBlock = 0.72;
constexpr double kWideFinish = 0.84;
constexpr double kWideExperts = 1.0;  // it looks for its tile and matrix first
constexpr double kWideEnd = 1.8;
constexpr double kWideEndFloats = 1.17e6;

// Thread blocks that a multiprocessor has registers for at a time (exl3_product.cuh).
int32_t resident_blocks(const Exl3Plan& plan) {
    const int32_t one_team = plan.teams == 1 ? 1 : 0;
    return plan.groups >= 4 ? 1 + one_team : 2 + one_team;
}

// Thread blocks of the multiprocessor that has the most to do, `resident` at a time: some begin
// while others end, unless there are few.
double busiest(int64_t blocks, int32_t processors, int32_t resident, int32_t least = 1) {
    const int64_t most = std::max<int64_t>(ceil_div(blocks, processors), least);
    // If a third has room, some take one although two each would do.
    if (resident == 3 && most == 2) return 3.0;
    if (blocks <= int64_t{4} * resident * processors) return static_cast<double>(most);
    return static_cast<double>(blocks) / processors + 0.5;
}

// The last thread block of 128 columns adds the units: its warps take rows, or quarters of four
// rows or of one, in turns.
double end_cost(const Exl3Plan& plan, const Exl3Work& work) {
    const double arrive = plan.ranks * plan.column_parts() > 1 && !plan.waits ? kArrive : 0.0;
    const int64_t units = units_of(plan.mode, work.w);
    const int64_t warps = int64_t{plan.teams} * team_warps(plan.halves());
    if (plan.groups <= 2 && !plan.halves() && units > kGatherUnits && 4 * work.rows <= warps) {
        const int64_t turns = ceil_div(4 * work.rows, warps) * ceil_div(units, kGatherManyUnits);
        return arrive + kGatherMany * static_cast<double>(turns);
    }
    const int64_t tasks = plan.groups <= 2 ? ceil_div(work.rows, 4) * 4 : work.rows;
    const int64_t batches = std::max<int64_t>(ceil_div(units, kGatherUnits), work.w.segments);
    return arrive + kGather * static_cast<double>(ceil_div(tasks, warps) * batches);
}

// What the kernel at the end of large tiles moves: every unit's sums, and about twice the outputs.
double end_floats(const Exl3Plan& plan, const Exl3Work& work) {
    const int64_t moved = units_of(plan.mode, work.w) + 2;
    return static_cast<double>(moved * work.total * work.w.n_padded);
}

// Tiles of 16 rows and 256 columns: the device full of thread blocks again and again, then the
// rest.
double wide_cost(const Exl3Plan& plan, const Exl3Work& work) {
    const int64_t blocks = ceil_div(work.columns, 2) * plan.ranks;
    const int64_t full = int64_t{wide_resident(work.w, work.device)} * work.device.processors;
    const int64_t times = blocks / full;
    const int64_t rest = ceil_div(blocks % full, work.device.processors);
    const int64_t all = blocks_of(work.w);
    const double leaves = plan.ranks == 1 ? static_cast<double>(all)
                          : times == 0    ? static_cast<double>(std::min(team_blocks(plan), all))
                                          : static_cast<double>(all) / plan.ranks;
    const double last =
        rest == 0 ? 0.0 : std::max(static_cast<double>(rest) * kWideLeaf, kWideLatency);
    const auto each = static_cast<double>(ceil_div(blocks, work.device.processors));
    const auto before = static_cast<double>(times * full / work.device.processors);
    const double sums = leaves * (before * kWideLeaf + last) + each * kWideBlock +
                        (work.experts ? kWideExperts : 0.0);
    if (plan.ranks == 1) {
        const int64_t rows = ceil_div(work.rows, 8) * work.w.segments;
        return sums + static_cast<double>((times + 1) * rows) * kWideFinish;
    }
    return sums + kWideEnd + end_floats(plan, work) / kWideEndFloats;
}

}  // namespace

double rotation_cost(const Exl3Plan& plan, const Exl3Work& work) {
    if (plan.rotate_inside) return 0.0;
    const int64_t inputs = work.total * work.members * work.w.k_padded;
    return (work.experts ? kRotateExperts : kRotateKernel) +
           static_cast<double>(inputs) / kRotateInputs;
}

double product_cost(const Exl3Plan& plan, const Exl3Work& work) {
    const int64_t blocks = work.columns * plan.ranks * plan.column_parts();
    const int32_t resident = resident_blocks(plan);
    // Behind the kernels before them those of few experts gather, as Exl3Plan::resident prevents.
    const int32_t least = work.experts ? std::min(resident, 2) : 1;
    const double each = busiest(blocks, work.device.processors, resident, least);
    const double together = std::min<double>(each, resident);
    const double rounds = each / together;
    const int32_t teams = plan.teams / plan.column_parts();  // of eight warps
    const int64_t leaves =
        std::max<int64_t>(std::min<int64_t>(team_blocks(plan), blocks_of(work.w)), 1);
    const auto groups = static_cast<double>(ceil_div(work.rows, 8));
    const double leaf = std::max(together * teams * (kLeaf + kLeafGroup * groups),
                                 kLatency + kLatencyGroup * groups);
    // In halves the teams add their leaves before, and each rotates what another one does too.
    const int64_t units = plan.halves()                    ? 1
                          : plan.mode == ProductMode::leaf ? teams * leaves
                                                           : teams * ceil_div(leaves, kGroupBlocks);
    const int64_t rotated = plan.rotate_inside ? plan.teams * leaves : 0;
    const double by_row = kWrite * static_cast<double>(units) +
                          (work.gated ? kRotateGated : kRotateRow) * static_cast<double>(rotated);
    return rounds * (kStart + static_cast<double>(leaves) * leaf) +
           each * (kBlockStart + by_row * static_cast<double>(work.rows)) + end_cost(plan, work);
}

double large_cost(const Exl3Plan& plan, const Exl3Work& work) {
    if (plan.tiling == Exl3Tiling::wide) return wide_cost(plan, work);
    const double rounds =
        busiest(ceil_div(work.columns, 2) * plan.ranks, work.device.processors, 1);
    const auto quarters = static_cast<double>(ceil_div(work.rows, kQuarterRows));
    const double leaf = kLargeLeaf + kLargeQuarter * quarters;
    const int64_t all = blocks_of(work.w);
    const auto leaves =
        static_cast<double>(plan.ranks == 1 ? all : std::min<int64_t>(team_blocks(plan), all));
    const double sums = rounds * (kLargeStart + leaves * leaf);
    if (plan.ranks == 1) return sums + rounds * work.w.segments * kLargeFinish * quarters;
    return sums + end_floats(plan, work) / kLargeEndFloats;
}

}  // namespace quadrille::cuda
