// SPDX-License-Identifier: Apache-2.0
// Launches the EXL3 product kernel that a plan, a bit width and a codebook family ask for.
#pragma once

#include "kernels/cuda/exl3/exl3_plan.h"
#include "kernels/cuda/kernel_set.h"

#include <cuda_runtime.h>

namespace quadrille::cuda {

// kBits 1..8, one file each. shared: bytes of dynamic shared memory.
template <int kBits>
void launch_exl3_bits(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, bool mul1,
                      int32_t shared, KernelSet& kernels, LaunchStream stream);

// args with its plan applied. w: its matrix, or one of the launch's kind (bits, codebook family)
// and as large as the largest of its table.
void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, const Matrix& w,
                 KernelSet& kernels, LaunchStream stream);

// The last step of a product of many rows (exl3_large.cuh) that several ranks have shared.
void finish_exl3_large(const Exl3Product& args, int32_t tile_rows, LaunchStream stream);

}  // namespace quadrille::cuda
