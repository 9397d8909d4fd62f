// SPDX-License-Identifier: Apache-2.0
// Which backend a job runs on, and the communicator that reaches its memory.
#pragma once

#include "kernels/backend.h"
#include "runtime/comm.h"
#include "runtime/log.h"
#include "runtime/mpi.h"

#include <memory>
#include <string>

namespace quadrille {

struct BackendChoice {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Communicator> staged;  // where MPI cannot reach the backend's memory, else null

    // The communicator for the model: `staged`, or `host` itself.
    Communicator& comm(Communicator& host) const { return staged ? *staged : host; }
};

// `name` as --backend takes it; "auto": the GPU where every rank has one, else the CPU. Several
// ranks of a host share its GPUs in turn. Collective over `comm`; AgreedError as make_backend's.
BackendChoice choose_backend(const std::string& name, const MpiSession& session, Communicator& comm,
                             Log& log);

}  // namespace quadrille
