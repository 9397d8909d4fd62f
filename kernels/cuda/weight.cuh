// SPDX-License-Identifier: Apache-2.0
// A native weight as a number. Many weights are loaded as they lie in memory and widened where they
// are used: a conversion beside its load would wait for it before the next load goes out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace quadrille::cuda {

__device__ __forceinline__ float value_of(__nv_bfloat16 weight) {
    return __bfloat162float(weight);
}
__device__ __forceinline__ float value_of(__half weight) {
    return __half2float(weight);
}
__device__ __forceinline__ float value_of(float weight) {
    return weight;
}

}  // namespace quadrille::cuda
