// SPDX-License-Identifier: Apache-2.0
// The trellis loops compiled for AVX2 (x86-64-v3).
#include "kernels/cpu/trellis_loops.h"

namespace quadrille::cpu {

extern constinit const TrellisPaths kTrellisAvx2 = trellis_loops("avx2");

}  // namespace quadrille::cpu
