// SPDX-License-Identifier: Apache-2.0
// The one program: reads the command line, chooses the job, turns an error into one printed line
// and its exit code. `generate` and `bench` run on MPI ranks; every other job is one process and
// never touches MPI. A job is offered once it is listed in kOffered and has its line below.
#include "jobs/bench/bench.h"
#include "jobs/files/inspect.h"
#include "jobs/files/pack.h"
#include "jobs/files/unpack.h"
#include "jobs/generate/generate.h"
#include "jobs/options/options.h"
#include "kernels/error.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille {
namespace {

constexpr std::array<std::string_view, 5> kOffered = {"generate", "bench", "inspect", "pack",
                                                      "unpack"};

constexpr std::array<std::string_view, 3> kAlone = {"inspect", "pack", "unpack"};

int show(const ShowText& text) {
    std::fputs(text.text.c_str(), stdout);
    return text.code;
}

int report(const Error& error) {
    fmt::print(stderr, "quadrille: {} error: {}\n", name(error.kind()), error.what());
    return error.exit_code();
}

// Jobs of one process: a line each.
int run_alone(const Command& command) {
    if (const auto* text = std::get_if<ShowText>(&command)) return show(*text);
    if (const auto* inspect = std::get_if<InspectOptions>(&command)) return run_inspect(*inspect);
    if (const auto* pack = std::get_if<PackOptions>(&command)) return run_pack(*pack);
    if (const auto* unpack = std::get_if<UnpackOptions>(&command)) return run_unpack(*unpack);
    throw Error(ErrorKind::internal, "a job that is offered but not linked in");
}

// Jobs on ranks. Start-up errors are agreed on inside; what a job throws after its start-up it
// ends itself, through Fatal.
int run_on_ranks(const Command& command, MpiSession& session, Launcher launcher) {
    if (const auto* text = std::get_if<ShowText>(&command)) {
        return session.rank() == 0 ? show(*text) : text->code;
    }
    if (const auto* generate = std::get_if<GenerateOptions>(&command)) {
        return run_generate(*generate, session, launcher);
    }
    if (const auto* bench = std::get_if<BenchOptions>(&command)) {
        return run_bench(*bench, session);
    }
    throw Error(ErrorKind::internal, "a job that is offered but not linked in");
}

void broadcast(Communicator& world, std::vector<std::string>& words) {
    std::string flat;
    for (const std::string& word : words) flat += word + '\0';
    int64_t bytes = std::ssize(flat);
    world.broadcast_host(&bytes, sizeof(bytes), 0);
    flat.resize(static_cast<size_t>(bytes));
    world.broadcast_host(flat.data(), bytes, 0);
    words.clear();
    for (size_t at = 0; at < flat.size(); at += words.back().size() + 1) {
        words.emplace_back(flat.c_str() + at);
    }
}

// Command line and environment of rank 0 count on every rank: mpirun does not carry the
// environment to other hosts.
int start_ranks(Invocation invocation) {
    const Launcher launcher;
    MpiSession session;
    try {
        broadcast(session.world(), invocation.arguments);
        broadcast(session.world(), invocation.environment);
        const Command command = agree(session.world(), "command line",
                                      [&] { return parse_command(invocation, kOffered); });
        return run_on_ranks(command, session, launcher);
    } catch (const AgreedError& error) {
        if (session.rank() != 0) return error.exit_code();
        return report(error);
    } catch (...) {
        // Other ranks may wait for this one, so this is no way to end for one rank alone.
        MpiSession::abort(report(as_error(std::current_exception())));
    }
}

int start(const Invocation& invocation) {
    const bool alone = !invocation.arguments.empty() &&
                       std::ranges::find(kAlone, invocation.arguments.front()) != kAlone.end();
    if (alone || !launched_with_others()) {
        const Command command = parse_command(invocation, kOffered);
        const bool on_ranks = std::holds_alternative<GenerateOptions>(command) ||
                              std::holds_alternative<BenchOptions>(command);
        if (!on_ranks) return run_alone(command);
    }
    return start_ranks(invocation);
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    using namespace quadrille;
    try {
        return start(read_invocation(argc, argv));
    } catch (...) {
        return report(as_error(std::current_exception()));
    }
}
