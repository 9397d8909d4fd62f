// SPDX-License-Identifier: Apache-2.0
// The sequence loops compiled for AVX-512 (x86-64-v4), whole registers.
#include "kernels/cpu/sequence_loops.h"

namespace quadrille::cpu {

extern constinit const SequencePaths kSequenceAvx512 = sequence_loops("avx512");

}  // namespace quadrille::cpu
