// SPDX-License-Identifier: Apache-2.0
// The cut of EXL3 products: what is pure host code of the CUDA backend.
#include "kernels/cuda/exl3_product.h"

#include <gtest/gtest.h>

namespace quadrille::cuda {
namespace {

constexpr int32_t kProcessors = 132;

Matrix shape(int64_t k, int64_t n, int32_t segments = 1) {
    Matrix w;
    w.k = w.k_padded = k;
    w.n = w.n_padded = n;
    w.bits = 4;
    w.segments = segments;
    for (int32_t s = 0; s <= segments; ++s) {
        w.segment[static_cast<size_t>(s)] = k / 128 * s / segments * 128;
    }
    return w;
}

TEST(Exl3Plan, UnitsCoverEverySegmentFromItsOwnStart) {
    EXPECT_EQ(units_of(ProductMode::leaf, shape(4096, 128)), 16);
    EXPECT_EQ(units_of(ProductMode::group, shape(4096, 128)), 4);
    EXPECT_EQ(units_of(ProductMode::segment, shape(4096, 128)), 1);
    // Segments of 3 blocks: a whole leaf and half a one each.
    EXPECT_EQ(units_of(ProductMode::leaf, shape(12 * 128, 128, 4)), 8);
    EXPECT_EQ(units_of(ProductMode::group, shape(12 * 128, 128, 4)), 4);
    EXPECT_EQ(units_of(ProductMode::leaf, shape(128, 128)), 1);
}

TEST(Exl3Plan, AnEmptySegmentHasNoUnits) {
    Matrix w = shape(256, 128, 4);
    w.segment = {0, 128, 256, 256, 256};
    EXPECT_EQ(units_of(ProductMode::segment, w), 2);
    EXPECT_EQ(units_of(ProductMode::leaf, w), 2);
}

TEST(Exl3Plan, SmallMatricesAreCutFinelyLargeOnesNot) {
    EXPECT_EQ(plan_exl3(shape(4096, 1024), 1, kProcessors).mode, ProductMode::leaf);
    EXPECT_NE(plan_exl3(shape(4096, 77440), 1, kProcessors).mode, ProductMode::leaf);
    EXPECT_EQ(plan_exl3(shape(1024, 77440), 1, kProcessors).mode, ProductMode::segment);
    EXPECT_TRUE(plan_exl3(shape(4096, 1024), 8, kProcessors).rotate_inside);
    EXPECT_FALSE(plan_exl3(shape(4096, 1024), 9, kProcessors).rotate_inside);
    EXPECT_FALSE(plan_exl3(shape(4096, 77440), 1, kProcessors).rotate_inside);
}

TEST(Exl3Plan, TilesOf64RowsKeepNoSumOverGroups) {
    for (const int64_t m : {33, 64, 512, 7168}) {
        const Exl3Plan plan = plan_exl3(shape(4096, 77440), m, kProcessors);
        EXPECT_EQ(plan.rows(), 64);
        EXPECT_NE(plan.mode, ProductMode::segment);
        // One group is the whole segment: no matter.
        EXPECT_EQ(plan_exl3(shape(1024, 77440), m, kProcessors).mode, ProductMode::segment);
    }
}

TEST(Exl3Plan, RowGroupsFitTheRows) {
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 8, kProcessors).groups, 1);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 9, kProcessors).groups, 2);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 17, kProcessors).groups, 4);
    // 24 pairs of 288 experts: about one row each; 57344: about 200.
    EXPECT_EQ(plan_exl3_experts(shape(4096, 1024), 24, 288, 2, kProcessors).groups, 1);
    EXPECT_EQ(plan_exl3_experts(shape(4096, 1024), 57344, 288, 2, kProcessors).groups, 8);
}

TEST(Exl3Plan, ScratchHoldsWholeColumnPairs) {
    Exl3Plan plan;
    plan.groups = 8;
    const Exl3Need need = exl3_need(plan, 3, 5, 2, 1);  // 5 blocks in pairs: 6
    EXPECT_EQ(need.counters, 12);
    EXPECT_EQ(need.partial, 12 * 3 * 64 * 128);
}

}  // namespace
}  // namespace quadrille::cuda
