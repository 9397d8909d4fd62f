// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exl3/exl3_launch.h"

#include "kernels/cuda/dependent_launch.h"

namespace quadrille::cuda {

Exl3Kernel exl3_kernel(const Exl3Plan& plan, const Matrix& w) {
    const bool mul1 = w.codebook == Codebook::mul1;
    switch (w.bits) {
        case 1:
            return exl3_kernel_bits<1>(plan, mul1);
        case 2:
            return exl3_kernel_bits<2>(plan, mul1);
        case 3:
            return exl3_kernel_bits<3>(plan, mul1);
        case 4:
            return exl3_kernel_bits<4>(plan, mul1);
        case 5:
            return exl3_kernel_bits<5>(plan, mul1);
        case 6:
            return exl3_kernel_bits<6>(plan, mul1);
        case 7:
            return exl3_kernel_bits<7>(plan, mul1);
        case 8:
            return exl3_kernel_bits<8>(plan, mul1);
        default:
            throw Error(ErrorKind::internal, "EXL3 matrix of 1 to 8 bits");
    }
}

namespace {

int32_t threads_of(const Exl3Plan& plan) {
    return plan.large_kernel() ? kLargeThreads : 32 * plan.teams * team_warps(plan.halves());
}

int32_t dynamic_shared(const Exl3Plan& plan, const Exl3Product& args, const Matrix& w,
                       const KernelSet& kernels) {
    const int32_t least = plan.large_kernel() ? large_shared_bytes(w.bits, plan.groups)
                                              : shared_bytes(args, plan.groups, w);
    return plan.resident > 0 ? kernels.shared_for(least, plan.resident) : least;
}

}  // namespace

int32_t exl3_resident(const Exl3Plan& plan, const Matrix& w, KernelSet& kernels) {
    Exl3Product args;
    apply_plan(args, plan, w);
    const Exl3Kernel kernel = exl3_kernel(plan, w);
    kernels.allow_shared(kernel, kernels.shared_limit());
    int blocks = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, reinterpret_cast<const void*>(kernel), threads_of(plan),
        static_cast<size_t>(dynamic_shared(plan, args, w, kernels))));
    return blocks;
}

void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, const Matrix& w,
                 KernelSet& kernels, LaunchStream stream) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    require(grid.y < 65536, "EXL3 product: fewer than 65536 row tiles");
    require(plan.units_of_rank() * plan.ranks >= args.units, "EXL3 plan of all units");
    require(args.rotated != nullptr ||
                (plan.rotate_inside && (args.table == nullptr || plan.groups <= kInsideGroups)),
            "EXL3 product: inputs rotated before, or by a plan");
    require(!plan.halves() || (args.table == nullptr && plan.mode == ProductMode::group &&
                               plan.teams == kGroupLeaves && plan.groups <= kHalvesGroups),
            "EXL3 product in halves: groups of one matrix");
    if (plan.large_kernel()) {
        // A thread block owns two blocks of columns; which index of the grid they are: row_tile().
        grid.x = (grid.x + 1) / 2;
        if (args.table == nullptr) grid = dim3(grid.y, grid.x, grid.z);
    }
    const Exl3Kernel kernel = exl3_kernel(plan, w);
    kernels.allow_shared(kernel, kernels.shared_limit());
    launch_dependent(kernel, grid, threads_of(plan), dynamic_shared(plan, args, w, kernels), stream,
                     args);
    if (plan.large_kernel() && plan.ranks > 1) finish_exl3_large(args, plan.rows(), stream);
}

}  // namespace quadrille::cuda
