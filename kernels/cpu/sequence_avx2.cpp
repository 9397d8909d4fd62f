// SPDX-License-Identifier: Apache-2.0
// The sequence loops compiled for AVX2 (x86-64-v3).
#include "kernels/cpu/sequence_loops.h"

namespace quadrille::cpu {

extern constinit const SequencePaths kSequenceAvx2 = sequence_loops("avx2");

}  // namespace quadrille::cpu
