// SPDX-License-Identifier: Apache-2.0
// The one program: reads the command line, chooses the job, turns an error into one printed line
// and its exit code. A job on ranks starts MPI; every other job is one process and never touches
// it. Which jobs there are: job_table.cpp.
#include "io/h5/trial.h"
#include "jobs/job_table.h"
#include "jobs/options/environment.h"
#include "jobs/options/parser.h"
#include "kernels/error.h"
#include "runtime/log.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"
#include "runtime/ranks/stop_signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <variant>
#include <vector>

namespace quadrille {
namespace {

using Clock = std::chrono::steady_clock;

int show_text(const ShowText& text) {
    show(stdout, text.text);
    return text.code;
}

int report(const Error& error) {
    show(stderr, fmt::format("quadrille: {} error: {}\n", name(error.kind()), error.what()));
    return error.exit_code();
}

// Start-up errors are agreed on inside; what a job throws after its start-up it ends itself,
// through Fatal.
int run_on_ranks(const Command& command, const RankStart& start) {
    if (const auto* text = std::get_if<ShowText>(&command)) {
        return start.session.rank() == 0 ? show_text(*text) : text->code;
    }
    return std::get<ChosenJob>(command).job->run(&start);
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
int start_ranks(Invocation invocation, std::span<const JobRow> table, StopSignals& signals,
                Clock::time_point begin) {
    std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more is no reason to end
    const Error apart(ErrorKind::usage,
                      "expected the ranks of one job, found several tasks that MPI sees one by "
                      "one: srun needs --mpi=pmix");
    if (launched_without_pmi()) return report(apart);
    const Launcher launcher;
    MpiSession session;
    if (session.size() == 1 && launched_with_others()) return report(apart);
    try {
        broadcast(session.world(), invocation.arguments);
        broadcast(session.world(), invocation.environment);
        const Command command = agree(session.world(), "command line",
                                      [&] { return parse_command(invocation, table); });
        return run_on_ranks(command, {session, launcher, signals, begin});
    } catch (const AgreedError& error) {
        if (session.rank() != 0) return error.exit_code();
        return report(error);
    } catch (...) {
        // Other ranks may wait for this one, so this is no way to end for one rank alone.
        MpiSession::abort(report(as_error(std::current_exception())));
    }
}

int start(const Invocation& invocation, StopSignals& signals, Clock::time_point begin) {
    const std::vector<JobRow> table = job_table();
    const bool alone = std::ranges::any_of(table, [&](const JobRow& row) {
        return !row.on_ranks && !invocation.arguments.empty() &&
               row.name == invocation.arguments.front();
    });
    if (alone) signals.release();
    if (alone || !launched_with_others()) {
        const Command command = parse_command(invocation, table);
        if (const auto* text = std::get_if<ShowText>(&command)) return show_text(*text);
        const auto& chosen = std::get<ChosenJob>(command);
        if (!chosen.on_ranks) return chosen.job->run(nullptr);
    }
    return start_ranks(invocation, table, signals, begin);
}

// A file that is opened must not become standard output or error because those are closed, and a
// write beyond a limit on file sizes is an error of that write.
void settle_streams() {
    while (true) {
        const int file = ::open("/dev/null", O_RDWR);
        if (file < 0) break;
        if (file > STDERR_FILENO) {
            ::close(file);
            break;
        }
    }
    std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
    using namespace quadrille;
    const auto begin = Clock::now();
    settle_streams();
    if (argc == 2 && argv[1] == std::string_view(kTrialArgument)) return run_trial();
    try {
        StopSignals signals(kResumable);
        return start(read_invocation(argc, argv), signals, begin);
    } catch (...) {
        return report(as_error(std::current_exception()));
    }
}
