// SPDX-License-Identifier: Apache-2.0
// The trellis loops one lane at a time, and the choice among the sets.
#include "kernels/cpu/trellis_loops.h"
#include "kernels/error.h"

#include <fmt/format.h>

namespace quadrille::cpu {

#if defined(QUADRILLE_X86)
extern constinit const TrellisPaths kTrellisAvx2;
extern constinit const TrellisPaths kTrellisAvx512;
#endif

namespace {
constexpr TrellisPaths kTrellisPlain = trellis_loops("plain");
}  // namespace

const TrellisPaths& trellis_paths_of(Isa isa) {
    if (!has_isa(isa)) {
        throw Error(ErrorKind::device, fmt::format("this processor or build lacks {}", name(isa)));
    }
#if defined(QUADRILLE_X86)
    if (isa == Isa::avx2) return kTrellisAvx2;
    if (isa == Isa::avx512) return kTrellisAvx512;
#endif
    return kTrellisPlain;
}

}  // namespace quadrille::cpu
