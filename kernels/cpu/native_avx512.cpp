// SPDX-License-Identifier: Apache-2.0
// Products with native matrices with AVX-512: sixteen accumulators of the 32 registers.
#include "kernels/cpu/native_simd.h"

namespace quadrille::cpu {

void native_rows_avx512(float* out, int64_t out_stride, const NativeRows& rows) {
    native_rows_simd<4, 4, 8>(out, out_stride, rows);
}

}  // namespace quadrille::cpu
