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

// The coarsest cut that still gives every multiprocessor its blocks: fewer partial sums. Tiles of
// 64 rows keep no sum over groups in registers, so their segments are cut into groups at least.
ProductMode mode_for(const Matrix& w, int32_t groups, int64_t columns, int32_t processors) {
    const int64_t wanted = groups == 8 ? processors : int64_t{2} * processors;
    const bool one_group = units_of(ProductMode::segment, w) == units_of(ProductMode::group, w);
    if ((groups < 8 || one_group) && columns * units_of(ProductMode::segment, w) >= wanted) {
        return ProductMode::segment;
    }
    if (columns * units_of(ProductMode::group, w) >= wanted) return ProductMode::group;
    return ProductMode::leaf;
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
