// SPDX-License-Identifier: Apache-2.0
// The EXL3 products of 8 bits a weight: one file per bit width bounds the time to compile.
#include "kernels/cuda/exl3/exl3_launch.cuh"

namespace quadrille::cuda {

template Exl3Kernel exl3_kernel_bits<8>(const Exl3Plan&, bool);

}  // namespace quadrille::cuda
