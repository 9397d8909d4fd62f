// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/launcher.h"

#include "runtime/ranks/mpi.h"

#include <unistd.h>

namespace quadrille {

Launcher::Launcher() : parent_(launched() ? getppid() : 0) {}

// An orphan is given to another process (init or a subreaper), so its parent's id changes.
bool Launcher::gone() const {
    return parent_ != 0 && getppid() != parent_;
}

}  // namespace quadrille
