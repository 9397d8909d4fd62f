// SPDX-License-Identifier: Apache-2.0
// What a job is to the program: a row of jobs/job_table.cpp. A job brings a struct of options and
// three functions of it: add_flags(CLI::App&, Options&) declares its flags; finish(Options&, const
// Invocation&) settles what must be given, defaults that depend on other options and values that do
// not go together (Error{usage}); its run function returns the exit code.
#pragma once

#include "kernels/error.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/mpi.h"
#include "runtime/ranks/stop_signals.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace quadrille {

struct Invocation {
    std::vector<std::string> arguments;    // without the program's name
    std::vector<std::string> environment;  // NAME=value of the names in options/environment.h
};

// What a job on ranks starts with. `launcher` was made before MPI started, `signals` at `begin`,
// the first line of main: they end the process with kResumable until the job heeds or releases
// them.
struct RankStart {
    MpiSession& session;
    Launcher launcher;
    StopSignals& signals;
    std::chrono::steady_clock::time_point begin;
};

// A job and the options of one invocation.
class Job {
  public:
    virtual ~Job() = default;
    virtual void declare(CLI::App& app) = 0;
    virtual void settle(const Invocation& invocation) = 0;
    // The exit code. `start`: nullptr for a job that runs alone.
    virtual int run(const RankStart* start) const = 0;
};

template <class Options>
class JobOf final : public Job {
  public:
    using Run = std::function<int(const Options&, const RankStart*)>;

    explicit JobOf(Run run) : run_(std::move(run)) {}
    void declare(CLI::App& app) override { add_flags(app, options_); }
    void settle(const Invocation& invocation) override { finish(options_, invocation); }
    int run(const RankStart* start) const override { return run_(options_, start); }
    const Options& options() const { return options_; }

  private:
    Options options_;
    Run run_;
};

struct JobRow {
    std::string name;
    std::string help;  // one line
    bool on_ranks = false;
    std::function<std::unique_ptr<Job>()> make;
    // The help shows what the command line must have, and a command.
    std::string required = {};
    std::string example = {};
};

// A job on MPI ranks. Its run throws errors of start-up on all ranks alike (AgreedError); what goes
// wrong later it ends itself, through Fatal.
template <class Options>
JobRow on_ranks(const char* name, const char* help, int (*run)(const Options&, const RankStart&)) {
    return {name,
            help,
            true,
            [run] {
                return std::make_unique<JobOf<Options>>(
                    [run](const Options& options, const RankStart* start) {
                        require(start != nullptr, "a job on ranks has ranks");
                        return run(options, *start);
                    });
            },
            {},
            {}};
}

// A job of one process, which never touches MPI.
template <class Options>
JobRow alone(const char* name, const char* help, int (*run)(const Options&)) {
    return {name,
            help,
            false,
            [run] {
                return std::make_unique<JobOf<Options>>(
                    [run](const Options& options, const RankStart*) { return run(options); });
            },
            {},
            {}};
}

}  // namespace quadrille
