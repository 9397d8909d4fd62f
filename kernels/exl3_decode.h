// SPDX-License-Identifier: Apache-2.0
// EXL3 weights as numbers, outside the ops: for tests, tools, and for loading a quantized matrix
// where a native one is needed. Both need a matrix in host memory and know nothing of speed.
#pragma once

#include "kernels/matrix.h"

#include <vector>

namespace quadrille {

// The weights of all 65536 states.
std::vector<float> exl3_values(Codebook codebook);

// out (k_padded, n_padded) f32: the codes' fp16 weights in the rotated basis.
void exl3_decode(float* out, const Matrix& matrix);

// out (n, k) f32: the matrix in its original basis, W^T = svh . H . codes^T . H . suh, computed in
// fp64 and rounded once. y = x W^T with it is the product the linear op computes.
void exl3_dequantize(float* out, const Matrix& matrix);

}  // namespace quadrille
