// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exl3/exl3_plan.h"

#include "kernels/cuda/exl3/exl3_cost.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

// Rows of a busy expert from which large tiles may be quicker: both took as long with 28.
constexpr int64_t kLargeFromExperts = 33;

int32_t groups_for(int64_t rows) {
    if (rows <= 8) return 1;
    if (rows <= 16) return 2;
    if (rows <= 32) return 4;
    return 8;
}

// Row groups of the tilings of 256 columns.
int32_t large_groups(Exl3Tiling tiling) {
    return tiling == Exl3Tiling::wide ? kWideGroups : kLargeGroups;
}

// The cheapest of the plans that it is shown, the first of equal ones.
class Cheapest {
  public:
    explicit Cheapest(const Exl3Work& work) : work_(work) {}

    void consider(const Exl3Plan& plan) {
        const double cost = exl3_cost(plan, work_);
        if (found_ && cost >= cost_) return;
        found_ = true;
        cost_ = cost;
        plan_ = plan;
    }
    bool found() const { return found_; }
    double cost() const { return cost_; }
    const Exl3Plan& plan() const { return plan_; }

  private:
    const Exl3Work& work_;
    bool found_ = false;
    double cost_ = 0.0;
    Exl3Plan plan_;
};

// Every sum is written once, and all thread blocks are on the device together however few its
// multiprocessors hold.
bool may_wait(const Exl3Plan& plan, const Exl3Work& work) {
    const int64_t parts = int64_t{plan.ranks} * plan.column_parts();
    if (work.experts || plan.groups > kWaitsGroups || plan.mode == ProductMode::segment ||
        parts <= 1) {
        return false;
    }
    Exl3Product args;
    apply_plan(args, plan, work.w);
    const int32_t block =
        shared_bytes(args, plan.groups, work.w) + kProductStatic + kReservedShared;
    const bool two = 2 * block <= work.device.shared_of_processor;
    return work.columns * parts <= work.device.processors * (two ? 2 : 1);
}

// The cheapest cut for tiles of `groups` row groups. There is scratch for `room` times 128 columns.
Cheapest cut(int32_t groups, const Exl3Work& work, int64_t room) {
    Cheapest cheapest(work);
    Exl3Plan plan;
    plan.groups = groups;
    const auto consider = [&](ProductMode mode, int32_t teams, int32_t team_units) {
        plan.mode = mode;
        plan.teams = teams;
        plan.team_units = team_units;
        plan.rotate_inside = false;
        const int32_t units = std::max(units_of(mode, work.w), 1);
        if (mode != ProductMode::segment &&
            room * units * plan.rows() * exl3::kBlock > kPartialLimit) {
            return;
        }
        plan.ranks = static_cast<int32_t>(ceil_div(units, plan.units_of_rank()));
        plan.waits = may_wait(plan, work);
        cheapest.consider(plan);
        plan.rotate_inside =
            (!work.experts || groups <= kInsideGroups) && team_blocks(plan) <= input_blocks(groups);
        if (plan.rotate_inside) cheapest.consider(plan);
    };
    const int32_t units = units_of(ProductMode::group, work.w);
    for (int32_t teams = exl3_teams(work.w.bits, groups); teams >= 1; --teams) {
        for (int32_t each = 1; each * teams <= std::max(units, teams); each *= 2) {
            consider(ProductMode::group, teams, each);
        }
        consider(ProductMode::leaf, teams, 1);
        consider(ProductMode::leaf, teams, 2);
    }
    if (!work.experts && groups <= kHalvesGroups) {
        plan.tiling = Exl3Tiling::halves;
        consider(ProductMode::group, kGroupLeaves, 1);
        plan.tiling = Exl3Tiling::teams;
    }
    // Adding to a sum in memory takes longer than adding them all at the end.
    if (!cheapest.found()) consider(ProductMode::segment, 1, std::max(work.w.segments, 1));
    return cheapest;
}

// The whole inputs to a thread block of 256 columns.
Exl3Plan large_plan(const Matrix& w, Exl3Tiling tiling) {
    Exl3Plan plan;
    plan.tiling = tiling;
    plan.groups = large_groups(tiling);
    plan.mode = ProductMode::segment;
    plan.team_units = std::max(units_of(plan.mode, w), 1);
    return plan;
}

// Behind a kernel that rotates, few thread blocks would gather on some of the multiprocessors, as
// many as fit: no more than each has to take.
int32_t spread(const Exl3Plan& plan, int64_t columns, const Matrix& w, const Exl3Device& device) {
    const int32_t most = plan.tiling == Exl3Tiling::wide ? wide_resident(w, device) : 1;
    const int64_t blocks = plan.large_kernel() ? ceil_div(columns, 2) * plan.ranks
                                               : columns * plan.ranks * plan.column_parts();
    const int64_t each = ceil_div(blocks, device.processors);
    return each <= most ? static_cast<int32_t>(each) : 0;
}

// The cheapest cut for tiles of 256 columns.
Cheapest cut_large(Exl3Tiling tiling, const Exl3Work& work) {
    Cheapest cheapest(work);
    Exl3Plan plan = large_plan(work.w, tiling);
    cheapest.consider(plan);
    const int32_t units = units_of(ProductMode::group, work.w);
    if (work.columns * units * plan.rows() * exl3::kBlock > kPartialLimit) return cheapest;
    plan.mode = ProductMode::group;
    for (plan.team_units = 1; plan.team_units < units; ++plan.team_units) {
        plan.ranks = static_cast<int32_t>(ceil_div(units, plan.team_units));
        // Fewer units to each of as many ranks end earlier.
        if (ceil_div(units, plan.ranks) == plan.team_units) cheapest.consider(plan);
    }
    return cheapest;
}

bool fits_large(const Matrix& w, Exl3Tiling tiling, const Exl3Device& device) {
    return device.shared >= large_shared_bytes(w.bits, large_groups(tiling));
}

}  // namespace

Exl3Plan plan_exl3(const Matrix& w, int64_t m, const Exl3Device& device) {
    const int64_t blocks = w.n_padded / exl3::kBlock;
    const auto work_in = [&](int64_t tile_rows) {
        const int64_t columns = std::max<int64_t>(blocks * ceil_div(m, tile_rows), 1);
        return Exl3Work{w, columns, std::clamp<int64_t>(m, 1, tile_rows), m, device, false};
    };
    const int32_t groups = groups_for(m);
    const Exl3Work work = work_in(int64_t{8} * groups);
    const Cheapest small = cut(groups, work, blocks);
    Exl3Plan plan = small.plan();
    double cost = small.cost();
    for (const Exl3Tiling tiling : {Exl3Tiling::wide, Exl3Tiling::large}) {
        if (!fits_large(w, tiling, device)) continue;
        const Exl3Work tiles = work_in(int64_t{8} * large_groups(tiling));
        const Cheapest large = cut_large(tiling, tiles);
        if (large.cost() >= cost) continue;
        plan = large.plan();
        cost = large.cost();
    }
    if (!plan.rotate_inside) plan.resident = spread(plan, work_in(plan.rows()).columns, w, device);
    return plan;
}

Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           const Exl3Device& device, int32_t groups, bool gated) {
    if (groups == kLargeGroups) return large_plan(w, Exl3Tiling::large);
    const int64_t busy = std::clamp<int64_t>(pairs, 1, std::max(experts, 1));
    const int64_t rows = ceil_div(pairs, busy);
    const int64_t blocks = w.n_padded / exl3::kBlock * members;
    // An expert's last tile is half full, or its only one as full as it is.
    const auto work_in = [&](int64_t tile_rows) {
        const int64_t tiles = std::max(busy, (pairs + busy * tile_rows / 2) / tile_rows);
        return Exl3Work{w,
                        std::max<int64_t>(blocks * tiles, 1),
                        std::clamp<int64_t>(ceil_div(pairs, tiles), 1, tile_rows),
                        pairs,
                        device,
                        true,
                        members,
                        gated};
    };
    // No more thread blocks than this many, whatever experts the pairs choose.
    const auto spread_out = [&](Exl3Plan plan) {
        if (!plan.rotate_inside)
            plan.resident = spread(plan, work_in(plan.rows()).columns, w, device);
        return plan;
    };
    const int32_t small_groups = groups > 0 ? groups : groups_for(rows);
    const int64_t tile_rows = int64_t{8} * small_groups;
    const Exl3Work work = work_in(tile_rows);
    const int64_t most_tiles = busy + (std::max(pairs, busy) - busy) / tile_rows;
    const Cheapest small = cut(small_groups, work, blocks * most_tiles);
    if ((groups == 0 ? small_groups <= kWideGroups : groups == kWideGroups) &&
        fits_large(w, Exl3Tiling::wide, device)) {
        const Exl3Plan wide = large_plan(w, Exl3Tiling::wide);
        if (exl3_cost(wide, work_in(wide.rows())) < small.cost()) return spread_out(wide);
    }
    if (groups == 0 && rows >= kLargeFromExperts && fits_large(w, Exl3Tiling::large, device)) {
        const Exl3Plan large = large_plan(w, Exl3Tiling::large);
        if (exl3_cost(large, work_in(large.rows())) < small.cost()) return large;
    }
    return spread_out(small.plan());
}

Exl3Need exl3_need(const Exl3Plan& plan, const Matrix& w, int32_t column_blocks, int64_t tiles,
                   int32_t members, bool by_segment) {
    const int64_t cells = column_blocks * tiles * members;
    const int64_t floats = int64_t{plan.rows()} * exl3::kBlock;
    if (plan.large_kernel() && plan.ranks == 1) {
        // The third of four segments waits for the fourth.
        return {w.segments == 4 && !by_segment ? cells * floats : 0, 0};
    }
    return {cells * units_of(plan.mode, w) * floats, plan.large_kernel() || plan.waits ? 0 : cells};
}

void apply_plan(Exl3Product& args, const Exl3Plan& plan, const Matrix& w) {
    args.mode = plan.mode;
    args.units = plan.large_kernel() && plan.ranks == 1 ? 1 : units_of(plan.mode, w);
    args.ranks = plan.ranks;
    args.teams = plan.teams;
    args.team_units = plan.team_units;
    args.halves = plan.halves();
    args.waits = plan.waits;
    if (plan.large_kernel()) return;
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
