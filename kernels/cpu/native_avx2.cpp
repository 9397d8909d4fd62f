// SPDX-License-Identifier: Apache-2.0
// Products with native matrices with AVX2: four accumulators of two registers each.
#include "kernels/cpu/native_simd.h"

namespace quadrille::cpu {

void native_rows_avx2(float* out, int64_t out_stride, const NativeRows& rows) {
    native_rows_simd<2, 2, 4>(out, out_stride, rows);
}

}  // namespace quadrille::cpu
