// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/paths.h"

#include "kernels/check.h"

namespace quadrille::cpu {

namespace {

constexpr Paths kPlain{.name = "plain",
                       .exl3_block = exl3_block_plain,
                       .native_rows = native_rows_plain,
                       .hadamard = hadamard_plain};

}  // namespace

Isa detect_isa() {
    return Isa::plain;
}

const Paths& paths_of(Isa isa) {
    if (isa != Isa::plain) throw Error(ErrorKind::device, "this processor lacks AVX");
    return kPlain;
}

}  // namespace quadrille::cpu
