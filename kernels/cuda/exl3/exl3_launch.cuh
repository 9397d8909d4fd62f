// SPDX-License-Identifier: Apache-2.0
// Picks the instance of the EXL3 product kernel for a plan; instantiated per bit width.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3/exl3_large.cuh"
#include "kernels/cuda/exl3/exl3_launch.h"
#include "kernels/cuda/exl3/exl3_product.cuh"

namespace quadrille::cuda {

template <int kBits, bool kMul1, int kGroups, int kTeams>
void launch_exl3_instance(const Exl3Product& args, dim3 grid, int32_t shared, KernelSet& kernels,
                          LaunchStream stream) {
    const auto kernel = exl3_product_kernel<kBits, kMul1, kGroups, kTeams>;
    kernels.allow_shared(kernel, kernels.shared_limit());
    launch_dependent(kernel, grid, 32 * args.teams * team_warps(args.halves), shared, stream, args);
}

// A thread block owns two blocks of columns; which index of the grid they are: row_tile().
template <int kBits, bool kMul1, int kGroups>
void launch_exl3_large(const Exl3Product& args, dim3 grid, int32_t shared, KernelSet& kernels,
                       LaunchStream stream) {
    const auto kernel = exl3_large_kernel<kBits, kMul1, kGroups>;
    kernels.allow_shared(kernel, kernels.shared_limit());
    grid.x = (grid.x + 1) / 2;
    if (args.table == nullptr) grid = dim3(grid.y, grid.x, grid.z);
    launch_dependent(kernel, grid, kLargeThreads, shared, stream, args);
}

template <int kBits, bool kMul1>
void launch_exl3_codebook(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, int32_t shared,
                          KernelSet& kernels, LaunchStream stream) {
    const auto launch = [&](auto instance) { instance(args, grid, shared, kernels, stream); };
    switch (plan.tiling) {
        case Exl3Tiling::wide:
            return launch(launch_exl3_large<kBits, kMul1, kWideGroups>);
        case Exl3Tiling::large:
            return launch(launch_exl3_large<kBits, kMul1, kLargeGroups>);
        case Exl3Tiling::halves:
            return plan.groups == 1 ? launch(launch_exl3_instance<kBits, kMul1, 1, 4>)
                                    : launch(launch_exl3_instance<kBits, kMul1, 2, 4>);
        case Exl3Tiling::teams:
            break;
    }
    switch (plan.groups) {
        case 1:
            return plan.teams == 1 ? launch(launch_exl3_instance<kBits, kMul1, 1, 1>)
                                   : launch(launch_exl3_instance<kBits, kMul1, 1, 2>);
        case 2:
            return plan.teams == 1 ? launch(launch_exl3_instance<kBits, kMul1, 2, 1>)
                                   : launch(launch_exl3_instance<kBits, kMul1, 2, 2>);
        case 4:
            return launch(launch_exl3_instance<kBits, kMul1, 4, 2>);
        default:
            return launch(launch_exl3_instance<kBits, kMul1, 8, 2>);
    }
}

template <int kBits>
void launch_exl3_bits(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, bool mul1,
                      int32_t shared, KernelSet& kernels, LaunchStream stream) {
    if (mul1) {
        launch_exl3_codebook<kBits, true>(plan, args, grid, shared, kernels, stream);
    } else {
        launch_exl3_codebook<kBits, false>(plan, args, grid, shared, kernels, stream);
    }
}

}  // namespace quadrille::cuda
