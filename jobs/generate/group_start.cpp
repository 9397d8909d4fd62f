// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/group_start.h"

#include "kernels/error.h"
#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

namespace quadrille {

void join_groups(ModelSession& session, RunFiles* files, MemberFiles* member, const RunShape& shape,
                 bool dry_run) {
    Communicator& world = session.world();
    const std::vector<std::string> runs =
        gather_texts(world, files != nullptr ? files->description() : std::string());
    std::vector<char> done(static_cast<size_t>(shape.records), 0);
    std::vector<char> ends = done;
    if (session.leads_run() && !dry_run) {
        std::ranges::copy(files->done(), done.begin());
        ends = files->ends();
    }
    world.broadcast_host(done.data(), std::ssize(done), 0);
    world.broadcast_host(ends.data(), std::ssize(ends), 0);
    session.agree("results of groups", [&] {
        if (files == nullptr) return;
        const auto group = static_cast<size_t>(session.mpi().rank());
        if (runs[group] != runs[0]) {
            throw Error(ErrorKind::input,
                        fmt::format("{} sees other files than {}: {}", session.mpi().host(),
                                    session.mpi().hosts()[0], other_field(runs[0], runs[group])));
        }
        if (member == nullptr || dry_run || shape.remaining == 0) return;
        member->join(session.group_index(), std::vector<bool>(done.begin(), done.end()), ends);
    });
}

void make_board(ModelSession& session, std::optional<GroupBoard>& board) {
    std::exception_ptr error;
    try {
        board.emplace(session.mpi(), session.group_count());
    } catch (const Error& reason) {
        error = std::make_exception_ptr(
            Error(ErrorKind::comm,
                  fmt::format("{}: this MPI has no one-sided calls between these ranks, by which "
                              "groups share records; start a job a group, each with --shard I/{}",
                              reason.what(), session.group_count())));
    }
    agree_on(session.world(), "counters of groups", error);
}

}  // namespace quadrille
