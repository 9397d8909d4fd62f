// SPDX-License-Identifier: Apache-2.0
// The cut of EXL3 products: what is pure host code of the CUDA backend.
#include "kernels/cuda/exl3/exl3_plan.h"

#include "kernels/cuda/exl3/exl3_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quadrille::cuda {
namespace {

constexpr int32_t kProcessors = 132;
constexpr int32_t kSmallestShared = 99 * 1024 - 1024;  // of a thread block, sm_86 to sm_121
constexpr int32_t kLargestShared = 227 * 1024 - 1024;  // sm_90
constexpr Exl3Device kDevice{kProcessors, kLargestShared, 228 * 1024};
constexpr Exl3Device kSmallDevice{48, kSmallestShared, 100 * 1024};
// As kDevice, but for a byte that the smallest tiles of 256 columns need, or those of 128 rows.
constexpr Exl3Device without_large(int32_t bits, int32_t groups = kWideGroups) {
    return {kProcessors, large_shared_bytes(bits, groups) - 1, 228 * 1024};
}

Matrix shape(int64_t k, int64_t n, int32_t segments = 1, int32_t bits = 4) {
    Matrix w;
    w.k = w.k_padded = k;
    w.n = w.n_padded = n;
    w.bits = bits;
    w.segments = segments;
    for (int32_t s = 0; s <= segments; ++s) {
        w.segment[static_cast<size_t>(s)] = k / 128 * s / segments * 128;
    }
    return w;
}

int64_t k_blocks(const Matrix& w) {
    return w.k_padded / 128;
}

TEST(Exl3Plan, UnitsCoverEverySegmentFromItsOwnStart) {
    EXPECT_EQ(units_of(ProductMode::leaf, shape(4096, 128)), 32);
    EXPECT_EQ(units_of(ProductMode::group, shape(4096, 128)), 8);
    EXPECT_EQ(units_of(ProductMode::segment, shape(4096, 128)), 1);
    // Segments of 5 blocks: a whole group and a short one each.
    EXPECT_EQ(units_of(ProductMode::leaf, shape(20 * 128, 128, 4)), 20);
    EXPECT_EQ(units_of(ProductMode::group, shape(20 * 128, 128, 4)), 8);
    EXPECT_EQ(units_of(ProductMode::segment, shape(20 * 128, 128, 4)), 4);
    EXPECT_EQ(units_of(ProductMode::group, shape(128, 128)), 1);
}

TEST(Exl3Plan, UnitsFollowEachOtherWithoutGaps) {
    for (const int64_t blocks : {1, 3, 4, 11, 13, 32}) {
        for (const int32_t segments : {1, 2, 4}) {
            const Matrix w = shape(blocks * 128, 128, segments);
            for (const ProductMode mode :
                 {ProductMode::leaf, ProductMode::group, ProductMode::segment}) {
                const int32_t span = unit_span(mode);
                const int32_t units = units_of(mode, w);
                int32_t next = 0;
                for (int32_t u = 0; u < units; ++u) {
                    const BlockRun run = run_of_units(w, span, u, 1);
                    EXPECT_EQ(run.first, next);
                    EXPECT_GE(run.blocks, 1);
                    int32_t s = 0;
                    while (segment_end(w, s) <= run.first) ++s;
                    EXPECT_LE(run.first + run.blocks, segment_end(w, s));
                    next += run.blocks;
                    // From here to the end, and more than there are.
                    EXPECT_EQ(run_of_units(w, span, u, units - u).blocks, blocks - run.first);
                    EXPECT_EQ(run_of_units(w, span, u, units + 5).blocks, blocks - run.first);
                }
                EXPECT_EQ(run_of_units(w, span, units, 1).blocks, 0);
                EXPECT_EQ(next, blocks);
            }
        }
    }
}

TEST(Exl3Plan, AnEmptySegmentHasNoUnits) {
    Matrix w = shape(256, 128, 4);
    w.segment = {0, 128, 256, 256, 256};
    EXPECT_EQ(units_of(ProductMode::segment, w), 2);
    EXPECT_EQ(units_of(ProductMode::leaf, w), 2);
}

// Whatever the shape: all units have a thread block, none has nothing to do, segments are summed by
// one team, and the shared memory is there on every device.
TEST(Exl3Plan, EveryPlanIsWhole) {
    const auto check = [](const Exl3Plan& plan, const Matrix& w, const Exl3Device& device) {
        const int32_t units = units_of(plan.mode, w);
        EXPECT_GE(plan.ranks * plan.units_of_rank(), units);
        EXPECT_LT((plan.ranks - 1) * plan.units_of_rank(), units);
        if (plan.mode == ProductMode::segment) {
            EXPECT_EQ(plan.ranks, 1);
            EXPECT_EQ(plan.teams, 1);
        }
        Exl3Product args;
        apply_plan(args, plan, w);
        if (plan.large_kernel()) {
            EXPECT_TRUE(plan.groups == kWideGroups || plan.groups == kLargeGroups);
            EXPECT_EQ(plan.teams, 1);
            EXPECT_FALSE(plan.rotate_inside);
            EXPECT_EQ(plan.mode == ProductMode::segment, plan.ranks == 1);
            EXPECT_LE(large_shared_bytes(w.bits, plan.groups), device.shared);
        } else {
            EXPECT_EQ(args.units, units);
            EXPECT_LE(shared_bytes(args, plan.groups, w), kSmallestShared);
        }
        // Who rotates takes all inputs of a team at once, a block of 128 for each warp at most.
        if (plan.rotate_inside) {
            const int32_t blocks = plan.halves() ? 1 : plan.team_units * unit_span(plan.mode);
            EXPECT_EQ(args.input_blocks, std::min<int64_t>(blocks, k_blocks(w)));
            EXPECT_LE(args.input_blocks, team_warps(plan.halves()));
        }
        if (plan.halves()) {
            EXPECT_EQ(plan.mode, ProductMode::group);
            EXPECT_EQ(plan.teams, kGroupLeaves);
            EXPECT_LE(plan.groups, kHalvesGroups);
            EXPECT_EQ(args.stages, 1);
        }
    };
    for (const int64_t k : {128, 640, 1024, 4096, 8192, 18432}) {
        for (const int64_t n : {128, 1024, 4096, 77440}) {
            for (int32_t bits = 1; bits <= 8; ++bits) {
                for (const int32_t segments : {1, 2, 4}) {
                    const Matrix w = shape(k, n, segments, bits);
                    for (const int64_t m : {1, 8, 9, 17, 32, 33, 65, 129, 512, 4096}) {
                        for (const Exl3Device& device : {kDevice, kSmallDevice, without_large(bits),
                                                         without_large(bits, kLargeGroups)}) {
                            check(plan_exl3(w, m, device), w, device);
                            check(plan_exl3_experts(w, m, 288, 2, device), w, device);
                            check(plan_exl3_experts(w, 64 * m, 288, 2, device), w, device);
                        }
                    }
                }
            }
        }
    }
}

// Weights decoded once for up to 16 or 128 rows: where there are rows for it, and the shared
// memory.
TEST(Exl3Plan, ManyRowsTakeLargeTiles) {
    for (int32_t bits = 1; bits <= 8; ++bits) {
        for (const Matrix& w :
             {shape(4096, 8192, 1, bits), shape(8192, 4096, 1, bits), shape(4096, 4096, 1, bits)}) {
            EXPECT_FALSE(plan_exl3(w, 1, kDevice).large_kernel());
            for (const int64_t m : {9, 16}) {
                EXPECT_EQ(plan_exl3(w, m, kDevice).tiling, Exl3Tiling::wide) << m;
            }
            for (const int64_t m : {17, 32, 33, 64, 65, 128, 129, 257, 512, 2048}) {
                EXPECT_EQ(plan_exl3(w, m, kDevice).groups, kLargeGroups) << m;
                EXPECT_FALSE(plan_exl3(w, m, without_large(bits)).large_kernel()) << m;
                EXPECT_NE(plan_exl3(w, m, kSmallDevice).groups, kLargeGroups) << m;
            }
        }
    }
    // One thread block for every 256 columns and 128 rows where those keep the device busy, or
    // some for the inputs too: no more of them than have something to do.
    EXPECT_EQ(plan_exl3(shape(4096, 8192), 512, kDevice).ranks, 1);
    EXPECT_EQ(plan_exl3(shape(4096, 77440), 512, kDevice).ranks, 1);
    EXPECT_EQ(plan_exl3(shape(4096, 1024), 512, kDevice).ranks, 8);
    EXPECT_EQ(plan_exl3(shape(4096, 1024), 512, kDevice).mode, ProductMode::group);
    EXPECT_EQ(plan_exl3(shape(8192, 4096), 32, kDevice).ranks, 8);
}

// However a product is cut, a row more never makes it cheaper.
TEST(Exl3Plan, CostsGrowWithTheRows) {
    for (const Matrix& w : {shape(4096, 1024), shape(1024, 4096), shape(4096, 8192, 4, 6)}) {
        for (const bool large : {false, true}) {
            double last = 0.0;
            for (int64_t rows = 1; rows <= 64; ++rows) {
                const Exl3Plan plan =
                    plan_exl3(w, large ? 512 : 64, large ? kDevice : without_large(w.bits));
                ASSERT_EQ(plan.large_kernel(), large);
                const Exl3Work work{w, w.n_padded / 128, rows, rows, kDevice, false};
                const double cost = exl3_cost(plan, work);
                EXPECT_GE(cost, last);
                last = cost;
            }
        }
    }
}

// Shapes that cuda_products_test and cuda_moe_test rely on.
TEST(Exl3Plan, ShapesOfTestsTakeLargeTiles) {
    for (const int64_t m : {17, 30}) {
        EXPECT_EQ(plan_exl3(shape(384, 12800), m, kDevice).tiling, Exl3Tiling::wide) << m;
        EXPECT_EQ(plan_exl3(shape(384, 12800), m, kDevice).ranks, 1) << m;
        for (const Matrix& w : {shape(2048, 2688), shape(1408, 4224, 4)}) {
            EXPECT_EQ(plan_exl3(w, m, kDevice).tiling, Exl3Tiling::wide) << m;
            EXPECT_GT(plan_exl3(w, m, kDevice).ranks, 1) << m;
        }
    }
    for (const int64_t m : {9, 16}) {
        EXPECT_EQ(plan_exl3(shape(640, 20096, 4), m, kDevice).tiling, Exl3Tiling::wide) << m;
        EXPECT_EQ(plan_exl3(shape(640, 20096, 4), m, kDevice).ranks, 1) << m;
    }
    for (const int64_t m : {129, 255, 512, 513}) {
        const Exl3Plan whole = plan_exl3(shape(384, 12800), m, kDevice);
        EXPECT_TRUE(whole.large_kernel() && whole.ranks == 1) << m;
        for (const Matrix& w : {shape(2048, 2688), shape(1664, 2176, 2), shape(1408, 4224, 4)}) {
            const Exl3Plan shared = plan_exl3(w, m, kDevice);
            EXPECT_TRUE(shared.large_kernel() && shared.ranks > 1) << m;
        }
    }
    EXPECT_TRUE(plan_exl3(shape(640, 4224), 300, kDevice).large_kernel());
    EXPECT_TRUE(plan_exl3_experts(shape(384, 1152, 1, 2), 1400, 3, 2, kDevice).large_kernel());
    EXPECT_EQ(plan_exl3_experts(shape(640, 640, 1, 2), 336, 24, 2, kDevice).tiling,
              Exl3Tiling::wide);
    EXPECT_FALSE(plan_exl3_experts(shape(640, 640, 1, 2), 7, 24, 2, kDevice).large_kernel());
    for (const int32_t segments : {1, 4}) {
        const Matrix down = shape(640, 640, segments, 2);
        EXPECT_EQ(plan_exl3_experts(down, 336, 24, 1, kDevice, kWideGroups, true).tiling,
                  Exl3Tiling::wide);
    }
}

TEST(Exl3Plan, ExpertsTakeLargeTilesWhereTheyHaveTheRows) {
    const Matrix w = shape(4096, 1024, 1, 2);
    EXPECT_FALSE(plan_exl3_experts(w, 24, 288, 2, kDevice).large_kernel());
    EXPECT_FALSE(plan_exl3_experts(w, 8192, 288, 2, kDevice).large_kernel());
    EXPECT_TRUE(plan_exl3_experts(w, 32768, 288, 2, kDevice).large_kernel());
    EXPECT_FALSE(plan_exl3_experts(w, 32768, 288, 2, kSmallDevice).large_kernel());
    for (const int64_t pairs : {1024, 4096}) {
        const Exl3Plan plan = plan_exl3_experts(w, pairs, 288, 2, kDevice);
        EXPECT_EQ(plan.tiling, Exl3Tiling::wide);
        EXPECT_EQ(plan.ranks, 1);
        EXPECT_EQ(plan_exl3_experts(w, pairs, 288, 1, kDevice, kWideGroups).tiling,
                  Exl3Tiling::wide);
        EXPECT_FALSE(plan_exl3_experts(w, pairs, 288, 1, kDevice, 1).large_kernel());
    }
    // Tiles that other kernels share are taken as they are.
    EXPECT_FALSE(plan_exl3_experts(w, 32768, 288, 2, kDevice, 8).large_kernel());
    EXPECT_TRUE(plan_exl3_experts(w, 24, 288, 1, kDevice, kLargeGroups).large_kernel());
    EXPECT_EQ(plan_exl3_experts(shape(1024, 4096, 4), 24, 288, 1, kDevice, kLargeGroups).mode,
              ProductMode::segment);
}

TEST(Exl3Plan, SmallMatricesAreCutFinelyLargeOnesNot) {
    EXPECT_EQ(plan_exl3(shape(1024, 4096), 33, without_large(4)).mode, ProductMode::leaf);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 1, kDevice).mode, ProductMode::group);
    EXPECT_LE(plan_exl3(shape(4096, 77440), 8, kDevice).ranks, 3);
    for (const Matrix& w : {shape(1024, 4096), shape(4096, 1024), shape(4096, 2048)}) {
        for (const int64_t m : {1, 3, 8, 16}) EXPECT_TRUE(plan_exl3(w, m, kDevice).halves()) << m;
        for (const int64_t m : {17, 64}) {
            EXPECT_FALSE(plan_exl3(w, m, without_large(4)).halves()) << m;
        }
        EXPECT_FALSE(plan_exl3_experts(w, 8, 8, 1, kDevice).halves());
    }
    for (const Matrix& w : {shape(8192, 4096), shape(4096, 8192)}) {
        EXPECT_FALSE(plan_exl3(w, 16, kDevice).halves());
    }
}

// A kernel before the product rotates the inputs of wide matrices, the product itself those of
// narrow ones, which few thread blocks rotate again.
TEST(Exl3Plan, InputsRotateWhereThatIsCheaper) {
    for (const int64_t m : {1, 8, 16}) {
        for (const int64_t n : {1024, 2048, 4096}) {
            EXPECT_TRUE(plan_exl3(shape(4096, n), m, without_large(4)).rotate_inside)
                << m << " " << n;
        }
    }
    EXPECT_TRUE(plan_exl3(shape(1024, 4096), 32, without_large(4)).rotate_inside);
    EXPECT_TRUE(plan_exl3(shape(1024, 4096), 64, without_large(4)).rotate_inside);
    EXPECT_FALSE(plan_exl3(shape(8192, 4096), 64, without_large(4)).rotate_inside);
    EXPECT_FALSE(plan_exl3(shape(4096, 77440), 8, kDevice).rotate_inside);
    // Experts: where they have few rows.
    for (const int64_t pairs : {1, 8}) {
        EXPECT_TRUE(plan_exl3_experts(shape(4096, 1024), pairs, 288, 2, kDevice).rotate_inside);
        EXPECT_TRUE(
            plan_exl3_experts(shape(1024, 4096), pairs, 288, 1, kDevice, 1, true).rotate_inside);
    }
    for (const int64_t pairs : {2304, 4608, 32768}) {
        EXPECT_FALSE(plan_exl3_experts(shape(4096, 1024), pairs, 288, 2, kDevice).rotate_inside);
        EXPECT_FALSE(
            plan_exl3_experts(shape(1024, 4096), pairs, 288, 1, kDevice, 0, true).rotate_inside);
    }
    // As cuda_moe_test relies on.
    for (const int64_t pairs : {3, 12, 39, 60}) {
        const int32_t groups = pairs <= 40 ? 1 : 2;
        const Matrix gate = shape(256, 256, 1, 2);
        const Exl3Plan plan = plan_exl3_experts(gate, pairs, 5, 2, kDevice);
        EXPECT_EQ(plan.groups, groups);
        EXPECT_TRUE(plan.rotate_inside);
        for (const bool gated : {false, true}) {
            EXPECT_TRUE(plan_exl3_experts(gate, pairs, 5, 1, kDevice, groups, gated).rotate_inside);
        }
    }
}

// Thread blocks spread if all have room and would gather: behind a kernel that rotates.
TEST(Exl3Plan, ThreadBlocksSpreadBehindAKernel) {
    for (const int64_t k : {1024, 4096, 8192}) {
        for (const int64_t n : {1024, 4096, 8192, 77440}) {
            for (const int64_t m : {1, 16, 17, 64, 200}) {
                for (const Exl3Device& device : {kDevice, without_large(4)}) {
                    const Exl3Plan plan = plan_exl3(shape(k, n), m, device);
                    const int64_t tiles = (m + plan.rows() - 1) / plan.rows();
                    const int64_t columns = n / 128 * tiles * plan.column_parts();
                    const int64_t blocks =
                        (plan.large_kernel() ? (columns + 1) / 2 : columns) * plan.ranks;
                    const int64_t each = (blocks + kProcessors - 1) / kProcessors;
                    const bool fit = each <= (plan.tiling == Exl3Tiling::wide ? kWideResident : 1);
                    EXPECT_EQ(plan.resident, fit && !plan.rotate_inside ? each : 0);
                }
            }
        }
    }
    EXPECT_EQ(plan_exl3(shape(8192, 4096), 32, without_large(4)).resident, 1);
    EXPECT_EQ(plan_exl3(shape(4096, 77440), 17, without_large(4)).resident, 0);
    EXPECT_EQ(plan_exl3(shape(4096, 8192), 16, kDevice).resident, 2);
    EXPECT_EQ(plan_exl3_experts(shape(4096, 2048, 1, 2), 8, 288, 2, kDevice).resident, 1);
}

TEST(Exl3Plan, WideTilesFitEveryDevice) {
    for (int32_t bits = 1; bits <= 8; ++bits) {
        EXPECT_GE(wide_resident(shape(1024, 1024, 1, bits), kSmallDevice), 1) << bits;
    }
    EXPECT_EQ(wide_resident(shape(1024, 1024, 1, 2), kSmallDevice), 2);
    EXPECT_EQ(wide_resident(shape(1024, 1024, 1, 2), kDevice), kWideResident);
}

// Who waits for the sums of other thread blocks finds them on the device, each sum written once.
TEST(Exl3Plan, WhoWaitsHasAllThreadBlocksAtOnce) {
    int waiting = 0;
    for (const int64_t k : {128, 1024, 4096, 8192}) {
        for (const int64_t n : {128, 1024, 2048, 4096, 8192, 77440}) {
            for (const int64_t m : {1, 8, 16, 17, 64, 200}) {
                for (const Exl3Device& device : {kDevice, kSmallDevice}) {
                    const Matrix w = shape(k, n);
                    const Exl3Plan plan = plan_exl3(w, m, device);
                    const int64_t tiles = (m + plan.rows() - 1) / plan.rows();
                    if (!plan.waits) continue;
                    const auto columns = static_cast<int32_t>(n / 128);
                    const Exl3Need need = exl3_need(plan, w, columns, tiles, 1, false);
                    ++waiting;
                    EXPECT_EQ(need.counters, 0);
                    EXPECT_GT(need.partial, 0);
                    EXPECT_LE(plan.groups, kWaitsGroups);
                    Exl3Product args;
                    apply_plan(args, plan, w);
                    EXPECT_TRUE(args.waits && plan.mode != ProductMode::segment);
                    const int32_t own = kProductStatic + 1024;  // what the device keeps: 1 KB
                    const int64_t blocks = columns * tiles * plan.ranks * plan.column_parts();
                    const int64_t each = (blocks + device.processors - 1) / device.processors;
                    const int64_t block = shared_bytes(args, plan.groups, w) + own;
                    EXPECT_LE(each * block, device.shared_of_processor);
                    EXPECT_FALSE(plan_exl3_experts(w, m, 8, 1, device).waits);
                }
            }
        }
    }
    EXPECT_GT(waiting, 20);
    EXPECT_TRUE(plan_exl3(shape(4096, 1024), 1, kDevice).waits);
    EXPECT_FALSE(plan_exl3(shape(4096, 77440), 1, kDevice).waits);
}

// Prefill with many experts: scratch for every group of every tile would be gigabytes.
TEST(Exl3Plan, ManyTilesKeepOneSumEach) {
    const Matrix w = shape(4096, 1024, 1, 2);
    EXPECT_EQ(plan_exl3_experts(w, 8192, 288, 2, kDevice).mode, ProductMode::segment);
    EXPECT_NE(plan_exl3_experts(w, 512, 288, 2, without_large(2)).mode, ProductMode::segment);
    EXPECT_NE(plan_exl3(w, 4096, kSmallDevice).mode, ProductMode::segment);
}

TEST(Exl3Plan, RowGroupsFitTheRows) {
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 8, kDevice).groups, 1);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 9, kDevice).groups, 2);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 17, without_large(4)).groups, 4);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 33, without_large(4)).groups, 8);
    EXPECT_EQ(plan_exl3(shape(4096, 4096), 17, kDevice).groups, kLargeGroups);
    // 24 pairs of 288 experts: about one row each; 57344: about 200.
    EXPECT_EQ(plan_exl3_experts(shape(4096, 1024), 24, 288, 2, kDevice).groups, 1);
    EXPECT_EQ(plan_exl3_experts(shape(4096, 1024), 57344, 288, 2, kSmallDevice).groups, 8);
    EXPECT_EQ(plan_exl3_experts(shape(4096, 1024), 24, 288, 2, kDevice, 8).groups, 8);
}

TEST(Exl3Plan, ScratchHoldsEveryUnit) {
    Exl3Plan plan;
    plan.groups = 8;
    plan.mode = ProductMode::group;
    const Exl3Need need = exl3_need(plan, shape(1536, 640), 5, 2, 1, false);
    EXPECT_EQ(need.counters, 10);
    EXPECT_EQ(need.partial, 10 * 3 * 64 * 128);
    // Large tiles: every group where ranks share the inputs, else what the tree of four waits for.
    plan.tiling = Exl3Tiling::large;
    plan.groups = kLargeGroups;
    plan.ranks = 3;
    EXPECT_EQ(exl3_need(plan, shape(1536, 640), 5, 2, 1, false).partial, 10 * 3 * 128 * 128);
    plan.ranks = 1;
    plan.mode = ProductMode::segment;
    EXPECT_EQ(exl3_need(plan, shape(1536, 640, 2), 5, 2, 1, false).partial, 0);
    EXPECT_EQ(exl3_need(plan, shape(1536, 640, 4), 5, 2, 1, true).partial, 0);
    EXPECT_EQ(exl3_need(plan, shape(1536, 640, 4), 5, 2, 2, false).partial, 20 * 128 * 128);
}

}  // namespace
}  // namespace quadrille::cuda
