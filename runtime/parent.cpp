// SPDX-License-Identifier: Apache-2.0
#include "runtime/parent.h"

#include "runtime/mpi.h"

#include <unistd.h>

namespace quadrille {

Parent::Parent() : parent_(launched() ? getppid() : 0) {}

// An orphan is given to another process (init or a subreaper), so its parent's id changes.
bool Parent::gone() const {
    return parent_ != 0 && getppid() != parent_;
}

}  // namespace quadrille
