// SPDX-License-Identifier: Apache-2.0
// Which backend a job runs on, and the communicator that reaches its memory.
#pragma once

#include "kernels/backend.h"
#include "runtime/log.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/mpi.h"

#include <memory>
#include <string>
#include <vector>

namespace quadrille {

struct BackendChoice {
    std::unique_ptr<Backend> backend;
    // NCCL's, or MPI's by way of host memory; null where MPI reaches the backend's memory itself.
    std::unique_ptr<Communicator> device_comm;
    std::vector<std::string> libraries;  // what this rank runs on, with versions, for provenance

    // The communicator for the model.
    Communicator& comm(Communicator& host) const { return device_comm ? *device_comm : host; }
};

// `name` as --backend takes it; "auto": the GPU where every rank has one, else the CPU. Several
// ranks of a host share its GPUs in turn. `comm_name` as --comm takes it; "auto": NCCL between
// several ranks that each have a GPU, where every rank has the same NCCL; else MPI. Collective over
// `comm`; AgreedError as make_backend's, and for "nccl" what keeps ranks from it.
BackendChoice choose_backend(const std::string& name, const std::string& comm_name,
                             const MpiSession& session, Communicator& comm, Log& log);

}  // namespace quadrille
