// SPDX-License-Identifier: Apache-2.0
// What every backend requires of an op's arguments: a function of the name and parameters of each
// op in kernels/ops.def. It reads shapes only, never memory of the backend. Error{internal} says
// what was expected. A backend calls it first, and then requires what it alone needs.
#pragma once

#include "kernels/op_types.h"

namespace quadrille::contract {

#define QUADRILLE_OP(name, parameters, arguments) void name parameters;
#include "kernels/ops.def"
#undef QUADRILLE_OP

// A matrix that a product may read: segments, EXL3 padding and bits, a native dtype.
void matrix(const Matrix& w);

}  // namespace quadrille::contract
