// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/backend_choice.h"

#include "runtime/ranks/agree.h"
#include "runtime/ranks/comm_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace quadrille {

namespace {

// Ranks that have all got here have this long to meet in NCCL.
constexpr std::chrono::seconds kPatience{60};

// NCCL between the ranks; null where "auto" cannot have it.
std::unique_ptr<Communicator> nccl_comm(BackendChoice& choice, const std::string& comm_name,
                                        const MpiSession& session, Communicator& comm, Log& log) {
    const bool wanted = comm_name == "nccl";
    agree(comm, "NCCL's backend", [&] {
        if (!wanted || choice.backend->name() == "cuda") return;
        throw Error(ErrorKind::usage,
                    fmt::format("--comm nccl: expected the cuda backend, found {}",
                                choice.backend->name()));
    });
    if (!wanted && (comm_name != "auto" || comm.size() == 1)) return nullptr;
    const NcclRank own =
        agree(comm, "NCCL's library", [&] { return nccl_rank(*choice.backend, session.host()); });
    std::vector<NcclRank> seats(static_cast<size_t>(comm.size()));
    comm.all_gather_host(seats.data(), &own, sizeof own);
    if (const std::optional<Error> obstacle = nccl_obstacle(seats)) {
        if (wanted) throw AgreedError(obstacle->kind(), obstacle->what(), obstacle->where());
        log.notice(fmt::format("{}; going on with MPI, without CUDA graphs", obstacle->what()));
        return nullptr;
    }
    std::unique_ptr<Communicator> made = make_nccl_comm(comm, *choice.backend, kPatience);
    choice.libraries.push_back(nccl_version_text(own.version));
    return made;
}

}  // namespace

// One rank without a GPU takes all to the CPU: backends agree within tolerances, ranks must agree
// in every bit.
BackendChoice choose_backend(const std::string& name, const std::string& comm_name,
                             const MpiSession& session, Communicator& comm, Log& log) {
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
    choice.libraries = choice.backend->libraries();
    if (choice.backend->name() == "cuda" || comm_name == "nccl") {
        choice.device_comm = nccl_comm(choice, comm_name, session, comm, log);
    }
    if (!choice.device_comm && !choice.backend->on_host()) {
        choice.device_comm = make_staged_comm(comm, *choice.backend);
    }
    return choice;
}

}  // namespace quadrille
