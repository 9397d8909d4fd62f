// SPDX-License-Identifier: Apache-2.0
// Picks the instance of the EXL3 product kernel for a plan; instantiated per bit width.
#pragma once

#include "kernels/cuda/exl3/exl3_large.cuh"
#include "kernels/cuda/exl3/exl3_launch.h"
#include "kernels/cuda/exl3/exl3_product.cuh"

namespace quadrille::cuda {

template <int kBits, bool kMul1>
Exl3Kernel exl3_kernel_of(const Exl3Plan& plan) {
    switch (plan.tiling) {
        case Exl3Tiling::wide:
            return exl3_large_kernel<kBits, kMul1, kWideGroups>;
        case Exl3Tiling::large:
            return exl3_large_kernel<kBits, kMul1, kLargeGroups>;
        case Exl3Tiling::halves:
            return plan.groups == 1 ? exl3_product_kernel<kBits, kMul1, 1, 4>
                                    : exl3_product_kernel<kBits, kMul1, 2, 4>;
        case Exl3Tiling::teams:
            break;
    }
    switch (plan.groups) {
        case 1:
            return plan.teams == 1 ? exl3_product_kernel<kBits, kMul1, 1, 1>
                                   : exl3_product_kernel<kBits, kMul1, 1, 2>;
        case 2:
            return plan.teams == 1 ? exl3_product_kernel<kBits, kMul1, 2, 1>
                                   : exl3_product_kernel<kBits, kMul1, 2, 2>;
        case 4:
            return exl3_product_kernel<kBits, kMul1, 4, 2>;
        default:
            return exl3_product_kernel<kBits, kMul1, 8, 2>;
    }
}

template <int kBits>
Exl3Kernel exl3_kernel_bits(const Exl3Plan& plan, bool mul1) {
    return mul1 ? exl3_kernel_of<kBits, true>(plan) : exl3_kernel_of<kBits, false>(plan);
}

}  // namespace quadrille::cuda
