// SPDX-License-Identifier: Apache-2.0
// Launches the EXL3 product kernel that a plan, a bit width and a codebook family ask for.
#pragma once

#include "kernels/cuda/exl3_product.h"
#include "kernels/cuda/kernel_set.h"

#include <cuda_runtime.h>

namespace quadrille::cuda {

// kBits 1..8, one file each.
template <int kBits>
void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, bool mul1,
                 KernelSet& kernels, cudaStream_t stream);

void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, int32_t bits, bool mul1,
                 KernelSet& kernels, cudaStream_t stream);

}  // namespace quadrille::cuda
