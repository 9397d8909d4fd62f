// SPDX-License-Identifier: Apache-2.0
// The trellis loops compiled for AVX-512 (x86-64-v4).
#include "kernels/cpu/trellis_loops.h"

namespace quadrille::cpu {

extern constinit const TrellisPaths kTrellisAvx512 = trellis_loops("avx512");

}  // namespace quadrille::cpu
