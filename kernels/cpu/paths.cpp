// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/paths.h"

#include "kernels/error.h"

#include <fmt/format.h>

namespace quadrille::cpu {

namespace {

constexpr Paths kPlain{.name = "plain",
                       .exl3_block = exl3_block_plain,
                       .native_rows = native_rows_plain,
                       .hadamard = hadamard_plain};

#if defined(QUADRILLE_X86)
constexpr Paths kAvx512{.name = "avx512",
                        .exl3_block = exl3_block_avx512,
                        .native_rows = native_rows_avx512,
                        .hadamard = hadamard_avx512};
constexpr Paths kAvx2{.name = "avx2",
                      .exl3_block = exl3_block_avx2,
                      .native_rows = native_rows_avx2,
                      .hadamard = hadamard_avx2};

bool has_avx2() {
    return __builtin_cpu_supports("avx2") > 0 && __builtin_cpu_supports("fma") > 0 &&
           __builtin_cpu_supports("f16c") > 0;
}

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") > 0 && __builtin_cpu_supports("avx512bw") > 0 &&
           __builtin_cpu_supports("avx512dq") > 0 && __builtin_cpu_supports("avx512vl") > 0 &&
           __builtin_cpu_supports("avx512vbmi") > 0 && __builtin_cpu_supports("avx512vnni") > 0;
}
#endif

}  // namespace

bool has_isa(Isa isa) {
    switch (isa) {
        case Isa::plain:
            return true;
#if defined(QUADRILLE_X86)
        case Isa::avx2:
            return has_avx2();
        case Isa::avx512:
            return has_avx512();
#endif
        default:
            return false;
    }
}

Isa detect_isa() {
    for (const Isa isa : {Isa::avx512, Isa::avx2}) {
        if (has_isa(isa)) return isa;
    }
    return Isa::plain;
}

const Paths& paths_of(Isa isa) {
    if (!has_isa(isa)) {
        throw Error(ErrorKind::device, fmt::format("this processor or build lacks {}", name(isa)));
    }
#if defined(QUADRILLE_X86)
    if (isa == Isa::avx512) return kAvx512;
    if (isa == Isa::avx2) return kAvx2;
#endif
    return kPlain;
}

}  // namespace quadrille::cpu
