// SPDX-License-Identifier: Apache-2.0
// The gate of an MLP, one element. The clamps as on the CPU: above only for the gate, before silu.
#pragma once

namespace quadrille::cuda {

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// limit 0: no clamps. A NaN stays one.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
    if (limit != 0.0f) {
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
    }
    return gate / (1.0f + expf(-gate)) * up;
}

}  // namespace quadrille::cuda
