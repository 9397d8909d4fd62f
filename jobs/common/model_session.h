// SPDX-License-Identifier: Apache-2.0
// The start-up of a job on ranks (docs/design.md §8), and what the job then runs on: groups of
// ranks, the way to die, backend, communicator, models. Phases come in the order of the members
// below; each is collective over all ranks, which agree on its outcome (AgreedError).
#pragma once

#include "jobs/common/backend_choice.h"
#include "jobs/common/job_models.h"
#include "jobs/common/memory_plan.h"
#include "jobs/options/job.h"
#include "jobs/options/model_options.h"
#include "runtime/log.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/fatal.h"
#include "runtime/ranks/groups.h"
#include "runtime/ranks/position.h"
#include "runtime/ranks/watchdog.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace quadrille {

class ModelSession {
  public:
    // Places the ranks: those of a group share one copy of the model. `options` outlives this.
    ModelSession(const ModelOptions& options, const RankStart& start);
    ~ModelSession();
    ModelSession(const ModelSession&) = delete;
    ModelSession& operator=(const ModelSession&) = delete;

    // A rank that dies from here on ends the job with a word about it, after `on_error` and
    // `at_end` (as Fatal's); so does one that is silent for longer than `silence` (0: any time).
    void watch(std::chrono::seconds silence, std::function<void()> at_end,
               std::function<void(const Error&)> on_error = {});

    // The rest of start-up: an AgreedError leaves, any other exception ends the job.
    template <class Body>
    void start_up(Body&& body);

    // A phase of start-up: as quadrille::agree over all ranks, and the watchdog knows of it.
    template <class Work>
    auto agree(const char* phase, Work&& work);

    void choose_backend();
    // What the folders of the models hold, for up to k drafts a step. Ranks that read other files
    // than each other are an Error{input} with a table.
    void read_checkpoint(int32_t k);
    // Reads every byte of both models, each rank of a group its share (verify.h).
    void verify_weights();
    // What this rank takes with these limits, and what it can have; -1: not known.
    const MemoryPlan& plan(const ModelLimits& limits, const std::vector<int64_t>& taps = {});
    int64_t available();
    // The draws of the run are `filtered` (RunPlan), as the plan is to know.
    void plan_filtered(bool filtered) { filtered_ = filtered; }
    // The most slots, up to `most`, with which a model of such limits fits on every rank; 1 where
    // not even that does, which load refuses.
    int64_t fitting_slots(int64_t most, const std::function<ModelLimits(int64_t slots)>& limits);
    // Error{device} with the plan as a table where `limits` do not fit.
    void check_memory(const ModelLimits& limits, const std::vector<int64_t>& taps = {});
    // Checks the memory, then reads weights. `comm`: model_comm() or one around it. Ids from
    // `known_tokens` on are never drafted. `taps`: as JobModels::load.
    void load(const ModelLimits& limits, int64_t known_tokens, Communicator& comm,
              const std::vector<int64_t>& taps = {});

    // The job after its start-up: an exception ends it. Needs watch.
    template <class Body>
    auto guard(Body&& body) {
        return fatal_->guard(std::forward<Body>(body));
    }

    MpiSession& mpi() { return start_.session; }
    Communicator& world() { return start_.session.world(); }
    Communicator& group() { return group_ ? *group_ : world(); }  // on host memory
    Communicator& model_comm() { return device_.comm(group()); }
    int group_count() const { return placement_.groups; }
    int group_index() const { return placement_.group; }
    bool leads() { return group().rank() == 0; }                   // its group
    bool leads_run() const { return start_.session.rank() == 0; }  // the first group too
    bool launcher_gone() const { return start_.launcher.gone(); }

    Backend& backend() { return *device_.backend; }
    // What this rank runs on, with versions.
    const std::vector<std::string>& libraries() const { return device_.libraries; }
    JobModels& models() { return *models_; }
    Log& log() { return log_; }
    Position& position() { return position_; }

  private:
    MemoryPlan make_plan(const ModelLimits& limits, const std::vector<int64_t>& taps);

    // Says where ranks differ in what changes no result.
    void compare_surroundings();

    const ModelOptions& options_;
    RankStart start_;
    std::unique_ptr<Communicator> group_;  // where there are several groups
    std::vector<int> group_of_rank_;
    Placement placement_;
    Log log_;
    Position position_;
    std::optional<Fatal> fatal_;
    std::optional<Watchdog> watchdog_;
    BackendChoice device_;
    std::optional<JobModels> models_;
    std::optional<MemoryPlan> plan_;  // the last one made
    bool filtered_ = false;
};

template <class Body>
void ModelSession::start_up(Body&& body) {
    try {
        std::forward<Body>(body)();
    } catch (const AgreedError&) {
        throw;
    } catch (...) {
        if (fatal_) fatal_->end(std::current_exception());
        throw;
    }
}

template <class Work>
auto ModelSession::agree(const char* phase, Work&& work) {
    struct Wait {
        Position& position;
        ~Wait() { position.wait(); }
    };
    position_.begin(phase);
    return quadrille::agree(
        world(), phase,
        [&] {
            const Wait at_end{position_};
            return std::forward<Work>(work)();
        },
        start_.session.hosts());
}

}  // namespace quadrille
