// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sequence_paths.h"

#include "kernels/error.h"

#include <fmt/format.h>

namespace quadrille::cpu {

const SequencePaths& sequence_paths_of(Isa isa) {
    if (!has_isa(isa)) {
        throw Error(ErrorKind::device, fmt::format("this processor or build lacks {}", name(isa)));
    }
#if defined(QUADRILLE_X86)
    if (isa == Isa::avx2) return kSequenceAvx2;
    if (isa == Isa::avx512) return kSequenceAvx512;
#endif
    return kSequencePlain;
}

}  // namespace quadrille::cpu
