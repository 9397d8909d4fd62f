// SPDX-License-Identifier: Apache-2.0
// Which thread blocks share an EXL3 product. Nothing here changes a result.
#include "kernels/cuda/exl3_product.h"

#include <algorithm>

namespace quadrille::cuda {

namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int32_t groups_for(int64_t rows) {
    if (rows <= 8) return 1;
    if (rows <= 16) return 2;
    if (rows <= 32) return 4;
    return 8;
}

// Leaves that one multiprocessor works through, about: its thread blocks one after another, their
// start and end (a leaf's time each, hidden where blocks share the multiprocessor), and what a
// block alone loses to latency. Fitted to an H200.
double cost_of(int64_t blocks, int32_t leaves, int32_t groups, int32_t processors) {
    const auto rounds = static_cast<double>(ceil_div(blocks, processors));
    if (groups == 8) return rounds * (leaves + 1);  // one block fills a multiprocessor
    const double speed = rounds < 1.5 ? 0.7 : rounds < 2.5 ? 0.95 : 1.0;
    const double work = rounds <= 6
                            ? rounds * leaves
                            : static_cast<double>(blocks) * leaves / processors + leaves / 2.0;
    return work / speed + rounds / 3;
}

// Tiles of 64 rows keep no sum over groups in registers, so their segments are cut into groups at
// least.
ProductMode mode_for(const Matrix& w, int32_t groups, int64_t columns, int32_t processors) {
    const bool one_group = units_of(ProductMode::segment, w) == units_of(ProductMode::group, w);
    const auto leaves = static_cast<double>(units_of(ProductMode::leaf, w));
    ProductMode best = ProductMode::leaf;
    double least = 0.0;
    for (const ProductMode mode : {ProductMode::leaf, ProductMode::group, ProductMode::segment}) {
        if (mode == ProductMode::segment && groups == 8 && !one_group) continue;
        const int32_t units = std::max(units_of(mode, w), 1);
        const auto each = static_cast<int32_t>(leaves / units + 0.5);
        const double cost = cost_of(columns * units, std::max(each, 1), groups, processors);
        if (mode == ProductMode::leaf || cost <= least) {
            best = mode;
            least = cost;
        }
    }
    return best;
}

}  // namespace

Exl3Plan plan_exl3(const Matrix& w, int64_t m, int32_t processors) {
    Exl3Plan plan;
    plan.groups = groups_for(m);
    const int64_t columns =
        ceil_div(w.n_padded / exl3::kBlock, plan.width()) * ceil_div(m, plan.rows());
    plan.mode = mode_for(w, plan.groups, columns, processors);
    // Rotating again in every column block is cheaper than one more launch for few rows.
    plan.rotate_inside = plan.mode == ProductMode::leaf && plan.groups == 1;
    return plan;
}

Exl3Plan plan_exl3_experts(const Matrix& w, int64_t pairs, int32_t experts, int32_t members,
                           int32_t processors) {
    Exl3Plan plan;
    const int64_t busy = std::clamp<int64_t>(pairs, 1, std::max(experts, 1));
    plan.groups = groups_for(ceil_div(pairs, busy));
    const int64_t columns = ceil_div(w.n_padded / exl3::kBlock, plan.width()) * busy * members;
    plan.mode = mode_for(w, plan.groups, columns, processors);
    return plan;
}

Exl3Plan with_groups(Exl3Plan plan, const Matrix& w, int32_t groups) {
    plan.groups = groups;
    plan.rotate_inside = plan.rotate_inside && groups == 1;
    const bool one_group = units_of(ProductMode::segment, w) == units_of(ProductMode::group, w);
    if (groups == 8 && plan.mode == ProductMode::segment && !one_group) {
        plan.mode = ProductMode::group;
    }
    return plan;
}

Exl3Need exl3_need(const Exl3Plan& plan, int32_t units, int32_t column_blocks, int64_t tiles,
                   int32_t members) {
    const int64_t columns = ceil_div(column_blocks, plan.width()) * plan.width();
    const int64_t cells = columns * tiles * members;
    return {cells * units * plan.rows() * exl3::kBlock, cells};
}

}  // namespace quadrille::cuda
