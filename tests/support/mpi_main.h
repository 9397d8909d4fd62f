// SPDX-License-Identifier: Apache-2.0
// What tests under mpirun share: the session, started before the first test.
#pragma once

#include "runtime/ranks/mpi.h"

namespace quadrille::test {

MpiSession& session();

}  // namespace quadrille::test
