// SPDX-License-Identifier: Apache-2.0
// Launches the EXL3 product kernel that a plan, a bit width and a codebook family ask for.
#pragma once

#include "kernels/cuda/exl3/exl3_plan.h"
#include "kernels/cuda/kernel_set.h"

#include <cuda_runtime.h>

namespace quadrille::cuda {

using Exl3Kernel = void (*)(Exl3Product);

// kBits 1..8, one file each.
template <int kBits>
Exl3Kernel exl3_kernel_bits(const Exl3Plan& plan, bool mul1);
// The kernel that a launch with this plan runs, for the bits and codebook of w.
Exl3Kernel exl3_kernel(const Exl3Plan& plan, const Matrix& w);

// Thread blocks of this plan's launch that the current device holds on a multiprocessor, by its own
// count of registers, threads and shared memory.
int32_t exl3_resident(const Exl3Plan& plan, const Matrix& w, KernelSet& kernels);

// args with its plan applied. w: its matrix, or one of the launch's kind (bits, codebook family)
// and as large as the largest of its table.
void launch_exl3(const Exl3Plan& plan, const Exl3Product& args, dim3 grid, const Matrix& w,
                 KernelSet& kernels, LaunchStream stream);

// The last step of a product of many rows (exl3_large.cuh) that several ranks have shared.
void finish_exl3_large(const Exl3Product& args, int32_t tile_rows, LaunchStream stream);

}  // namespace quadrille::cuda
