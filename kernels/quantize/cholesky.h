// SPDX-License-Identifier: Apache-2.0
// Cholesky factor of a symmetric matrix in host memory, fp64, the same bits for any number of
// threads.
#pragma once

#include <cstdint>

namespace quadrille::quantize {

// h (k, k), its lower triangle: replaced by C with H = C C^T. False: not positive definite, and h
// is spoilt. k: a multiple of 64.
bool cholesky(double* h, int64_t k, int32_t threads);

}  // namespace quadrille::quantize
