// SPDX-License-Identifier: Apache-2.0
#include "jobs/backend_choice.h"

#include "runtime/agree.h"

#include <algorithm>

namespace quadrille {

// One rank without a GPU takes all to the CPU: backends agree within tolerances, ranks must agree
// in every bit.
BackendChoice choose_backend(const std::string& name, const MpiSession& session, Communicator& comm,
                             Log& log) {
    std::string chosen = name;
    if (chosen == "auto") {
        const bool on_gpu = comm.max_host(gpu_count() > 0 ? 0 : 1) == 0;
        if (!on_gpu && has_cuda()) log.notice("no GPU: running on the CPU");
        chosen = on_gpu ? "cuda" : "cpu";
    }
    BackendChoice choice;
    agree(comm, "backend", [&] {
        choice.backend = make_backend(chosen, session.local_rank() % std::max(gpu_count(), 1));
    });
    if (!choice.backend->on_host()) choice.staged = make_staged_comm(comm, *choice.backend);
    return choice;
}

}  // namespace quadrille
