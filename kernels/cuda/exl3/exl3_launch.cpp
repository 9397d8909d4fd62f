// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exl3/exl3_launch.h"

namespace quadrille::cuda {

namespace {

void launch_width(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, const Matrix& w,
                  int32_t shared, KernelSet& kernels, LaunchStream stream) {
    const bool mul1 = w.codebook == Codebook::mul1;
    switch (w.bits) {
        case 1:
            return launch_exl3_bits<1>(plan, args, grid, mul1, shared, kernels, stream);
        case 2:
            return launch_exl3_bits<2>(plan, args, grid, mul1, shared, kernels, stream);
        case 3:
            return launch_exl3_bits<3>(plan, args, grid, mul1, shared, kernels, stream);
        case 4:
            return launch_exl3_bits<4>(plan, args, grid, mul1, shared, kernels, stream);
        case 5:
            return launch_exl3_bits<5>(plan, args, grid, mul1, shared, kernels, stream);
        case 6:
            return launch_exl3_bits<6>(plan, args, grid, mul1, shared, kernels, stream);
        case 7:
            return launch_exl3_bits<7>(plan, args, grid, mul1, shared, kernels, stream);
        case 8:
            return launch_exl3_bits<8>(plan, args, grid, mul1, shared, kernels, stream);
        default:
            require(false, "EXL3 matrix of 1 to 8 bits");
    }
}

}  // namespace

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
    int32_t shared = plan.large_kernel() ? large_shared_bytes(w.bits, plan.groups)
                                         : shared_bytes(args, plan.groups, w);
    if (plan.resident > 0) shared = kernels.shared_for(shared, plan.resident);
    launch_width(plan, args, grid, w, shared, kernels, stream);
    if (plan.large_kernel() && plan.ranks > 1) finish_exl3_large(args, plan.rows(), stream);
}

}  // namespace quadrille::cuda
