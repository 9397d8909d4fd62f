// SPDX-License-Identifier: Apache-2.0
// Ops: every op of the model as a pure virtual of the name and parameters in kernels/ops.def. They
// run in stream order (CPU: done on return). No op allocates once its scratch has grown to the
// largest pass, and none reads another record's rows: what a row computes never depends on the
// company it has (docs/design.md §6). An op checks its contract (contract.h) first.
#pragma once

#include "kernels/op_types.h"

namespace quadrille {

class Ops {
  public:
    virtual ~Ops() = default;

#define QUADRILLE_OP(name, parameters, arguments) virtual void name parameters = 0;
#include "kernels/ops.def"
#undef QUADRILLE_OP
};

}  // namespace quadrille
