// SPDX-License-Identifier: Apache-2.0
// Picks the instance of the EXL3 product kernel for a plan; instantiated per bit width.
#pragma once

#include "kernels/cuda/dependent_launch.h"
#include "kernels/cuda/exl3_launch.h"
#include "kernels/cuda/exl3_product.cuh"

namespace quadrille::cuda {

template <int kBits, bool kMul1, int kGroups>
void launch_exl3_instance(const Exl3Product& args, dim3 grid, KernelSet& kernels,
                          cudaStream_t stream) {
    constexpr int kShared = ProductKernel<kBits, kMul1, kGroups>::kSharedBytes;
    kernels.allow_shared(exl3_product_kernel<kBits, kMul1, kGroups>, kShared);
    launch_dependent(exl3_product_kernel<kBits, kMul1, kGroups>, grid, kProductThreads, kShared,
                     kernels.overlaps(), stream, args);
}

template <int kBits, bool kMul1>
void launch_exl3_codebook(const Exl3Plan& plan, const Exl3Product& args, dim3 grid,
                          KernelSet& kernels, cudaStream_t stream) {
    switch (plan.groups) {
        case 1:
            return launch_exl3_instance<kBits, kMul1, 1>(args, grid, kernels, stream);
        case 2:
            return launch_exl3_instance<kBits, kMul1, 2>(args, grid, kernels, stream);
        case 4:
            return launch_exl3_instance<kBits, kMul1, 4>(args, grid, kernels, stream);
        default:
            return launch_exl3_instance<kBits, kMul1, 8>(args, grid, kernels, stream);
    }
}

template <int kBits>
void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, bool mul1,
                 KernelSet& kernels, cudaStream_t stream) {
    if (mul1) {
        launch_exl3_codebook<kBits, true>(plan, args, grid, kernels, stream);
    } else {
        launch_exl3_codebook<kBits, false>(plan, args, grid, kernels, stream);
    }
}

}  // namespace quadrille::cuda
