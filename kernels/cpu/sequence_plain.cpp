// SPDX-License-Identifier: Apache-2.0
// The sequence loops compiled for any machine of the family.
#include "kernels/cpu/sequence_loops.h"

namespace quadrille::cpu {

extern constinit const SequencePaths kSequencePlain = sequence_loops("plain");

}  // namespace quadrille::cpu
