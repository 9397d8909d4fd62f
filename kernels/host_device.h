// SPDX-License-Identifier: Apache-2.0
// Arithmetic that host and device must share bit for bit: functions marked QUADRILLE_HOST_DEVICE,
// and double products and sums that no compiler contracts into a fused multiply-add.
#pragma once

#ifndef QUADRILLE_HOST_DEVICE
#if defined(__CUDACC__)
#define QUADRILLE_HOST_DEVICE __host__ __device__
#else
#define QUADRILLE_HOST_DEVICE
#endif
#endif

namespace quadrille::ieee {

QUADRILLE_HOST_DEVICE constexpr double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;  // the host is compiled with -ffp-contract=off
#endif
}
QUADRILLE_HOST_DEVICE constexpr double add(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

}  // namespace quadrille::ieee
