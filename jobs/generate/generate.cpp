// SPDX-License-Identifier: Apache-2.0
// Start-up in phases that all ranks agree on (docs/design.md §8), then each group of ranks for
// itself: records in, passes, generations out. The leader of a group reads and writes, its other
// ranks only compute; rank 0 leads the run and makes the result of all groups' parts.
#include "jobs/generate/generate.h"

#include "io/text/tokenizer.h"
#include "jobs/common/backend_choice.h"
#include "jobs/common/job_models.h"
#include "jobs/common/provenance.h"
#include "jobs/generate/group_board.h"
#include "jobs/generate/group_end.h"
#include "jobs/generate/heartbeat.h"
#include "jobs/generate/run_files.h"
#include "jobs/generate/run_loop.h"
#include "jobs/generate/run_summary.h"
#include "jobs/generate/stop_plan.h"
#include "kernels/backend.h"
#include "runtime/engine.h"
#include "runtime/log.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/fatal.h"
#include "runtime/ranks/groups.h"
#include "runtime/ranks/position.h"
#include "runtime/ranks/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace quadrille {

namespace {

class GenerateJob {
  public:
    GenerateJob(const GenerateOptions& options, MpiSession& session, Launcher launcher);
    int run();

  private:
    bool leads() const { return comm_->rank() == 0; }        // its group
    bool leads_run() const { return session_.rank() == 0; }  // and the run
    bool several() const { return placement_.groups > 1; }

    void place();
    void watch();
    void start_up();
    void choose_backend();
    void read_checkpoint();
    void open_files();
    void join_groups();
    void make_board();
    void load_model();
    Communicator& model_comm() { return device_comm_ ? *device_comm_ : *comm_; }
    ModelLimits limits() const;
    void show_plan() const;
    void check_launcher() const;

    int run_steps();
    void show(const GroupProgress& all, Stop stop);
    int end(const EngineStats& stats, Stop stop);
    RunEnd gather(const EngineStats& stats, Stop stop);
    void finish(const EngineStats& stats);
    Progress progress(const GroupProgress& all) const;

    const GenerateOptions& options_;
    MpiSession& session_;
    Launcher launcher_;
    Communicator& world_;
    std::unique_ptr<Communicator> group_comm_;  // where there are several groups
    Communicator* comm_;                        // of the group, on host memory
    std::vector<int> group_of_rank_;
    Placement placement_;
    Log log_;
    Heartbeat heartbeat_;
    Position position_;
    std::optional<Fatal> fatal_;
    std::optional<Watchdog> watchdog_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    RunFacts facts_;
    int32_t k_ = 0;
    RunShape shape_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> device_comm_;  // where MPI cannot reach the backend's memory
    std::optional<JobModels> models_;
    std::optional<RunFiles> files_;         // of leaders
    std::unique_ptr<Tokenizer> tokenizer_;  // of other ranks, for stop strings
    std::optional<GroupBoard> board_;       // where there are several groups
};

GenerateJob::GenerateJob(const GenerateOptions& options, MpiSession& session, Launcher launcher)
    : options_(options),
      session_(session),
      launcher_(launcher),
      world_(session.world()),
      comm_(&world_),
      log_(session.rank() == 0),
      facts_{.start = utc_now(),
             .hosts = session.hosts(),
             .devices = {},
             .comm = {},
             .libraries = {}} {}

// Groups are told apart before anything else: the watchdog must know who waits for whom.
void GenerateJob::place() {
    const std::vector<Placement> all =
        agree(world_, "ranks", [&] { return place_ranks(session_.hosts(), options_.tp); });
    for (const Placement& placement : all) group_of_rank_.push_back(placement.group);
    placement_ = all[static_cast<size_t>(session_.rank())];
    if (!several()) return;
    group_comm_ = session_.split(placement_.group, placement_.rank_in_group);
    comm_ = group_comm_.get();
}

void GenerateJob::start_up() {
    choose_backend();
    facts_.devices = gather_texts(world_, backend_->device());
    facts_.comm = model_comm().name();
    facts_.groups = placement_.groups;
    agree(world_, "checkpoint", [&] { read_checkpoint(); });
    open_files();
    if (options_.dry_run || shape_.remaining == 0) return;
    if (several()) make_board();
    agree(world_, "tokenizer", [&] {  // every rank looks for stop strings
        if (shape_.stop_text && !leads()) tokenizer_ = make_tokenizer(options_.target);
    });
    agree(world_, "weights", [&] { load_model(); });
}

// Groups must agree in every bit, as ranks do; and where one fails, all do.
void GenerateJob::choose_backend() {
    std::string name = options_.backend;
    if (several() && name == "auto") {
        name = world_.max_host(gpu_count() > 0 ? 0 : 1) == 0 ? "cuda" : "cpu";
    }
    std::exception_ptr error;
    try {
        BackendChoice choice =
            quadrille::choose_backend(name, options_.comm, session_, *comm_, log_);
        backend_ = std::move(choice.backend);
        device_comm_ = std::move(choice.device_comm);
        facts_.libraries = std::move(choice.libraries);
    } catch (const AgreedError&) {
        error = std::current_exception();
    }
    agree_on(world_, "backend of all groups", error);
}

// From here on a rank that dies or falls silent ends the job with a word about it.
void GenerateJob::watch() {
    fatal_.emplace(
        Fatal::Rank{.rank = session_.rank(), .size = session_.size(), .host = session_.host()},
        position_, &MpiSession::abort);
    fatal_->at_end([this] {
        if (files_) files_->save_what_is_there(!launcher_.gone());
    });
    fatal_->at_abort([this] {
        if (device_comm_) device_comm_->abort();
    });
    if (options_.watchdog > 0) {
        watchdog_.emplace(session_, position_, *fatal_, launcher_,
                          std::chrono::seconds(options_.watchdog), group_of_rank_);
    }
}

void GenerateJob::read_checkpoint() {
    k_ = options_.draft == "none" ? 0 : static_cast<int32_t>(options_.k);
    models_.emplace(ModelChoice{.target = options_.target,
                                .draft = options_.draft,
                                .placement = options_.draft_placement,
                                .k = k_},
                    comm_->size(), comm_->rank());
    if (!models_->drafts() || options_.accept != AcceptRule::rejection) return;
    const int64_t top_k = models_->draft_config().selector_top_k;
    if (top_k > RankCandidates::kMaxProposed) {
        throw Error(ErrorKind::usage,
                    fmt::format("--accept rejection: expected a drafter with selector_top_k of at "
                                "most {}, found {}",
                                RankCandidates::kMaxProposed, top_k));
    }
}

void GenerateJob::open_files() {
    const auto open = [&] {
        files_.emplace(options_,
                       RunFiles::Model{models_->config(), models_->checkpoint(),
                                       models_->drafts() ? &models_->draft_checkpoint() : nullptr,
                                       *backend_, k_},
                       log_, [this] { check_launcher(); });
    };
    agree(world_, "files", [&] {
        if (!leads_run()) return;
        open();
        shape_ = files_->lead();
        if (!options_.dry_run) heartbeat_ = Heartbeat(options_.heartbeat);
    });
    world_.broadcast_host(&shape_, sizeof shape_, 0);
    if (!several()) return;
    agree(world_, "files of groups", [&] {
        if (!leads() || leads_run()) return;
        open();
        files_->follow(shape_);
    });
    join_groups();
}

// Every group must see the files that the run's leader sees, wherever its host has them.
void GenerateJob::join_groups() {
    const std::vector<std::string> runs =
        gather_texts(world_, files_ ? files_->description() : std::string());
    std::vector<char> done(static_cast<size_t>(shape_.records), 0);
    if (leads_run() && !options_.dry_run) {
        std::ranges::copy(files_->done(), done.begin());
    }
    world_.broadcast_host(done.data(), std::ssize(done), 0);
    agree(world_, "results of groups", [&] {
        if (!files_) return;
        const auto group = static_cast<size_t>(session_.rank());
        if (runs[group] != runs[0]) {
            throw Error(ErrorKind::input,
                        fmt::format("{} sees other files than {}: {}", session_.host(),
                                    session_.hosts()[0], other_field(runs[0], runs[group])));
        }
        if (leads_run() || options_.dry_run || shape_.remaining == 0) return;
        files_->join(placement_.group, std::vector<bool>(done.begin(), done.end()));
    });
}

// Open MPI without UCX has no one-sided calls between hosts that a program with threads may use.
void GenerateJob::make_board() {
    std::exception_ptr error;
    try {
        board_.emplace(session_, placement_.groups);
    } catch (const Error& reason) {
        error = std::make_exception_ptr(
            Error(ErrorKind::comm,
                  fmt::format("{}: this MPI has no one-sided calls between these ranks, by which "
                              "groups share records; start a job a group, each with --shard I/{}",
                              reason.what(), placement_.groups)));
    }
    agree_on(world_, "counters of groups", error);
}

// Ranks outlive a killed mpirun by a second, and a new start of the run may be at work already.
void GenerateJob::check_launcher() const {
    if (launcher_.gone()) {
        throw Error(ErrorKind::comm, "the launcher of this rank is gone: nothing more is written");
    }
}

ModelLimits GenerateJob::limits() const {
    const int64_t slots =
        std::clamp<int64_t>(options_.max_seqs, 1, std::max<int64_t>(shape_.records, 1));
    return model_limits(slots, shape_.capacity, options_.max_batched_tokens, k_);
}

void GenerateJob::load_model() {
    models_->load(*backend_, model_comm(), position_, limits(), shape_.known_tokens);
    const std::string skipped = models_->target().skipped_tensors();
    if (!skipped.empty()) log_.notice(fmt::format("skipped tensors: {}", skipped));
}

void GenerateJob::show_plan() const {
    const ModelLimits plan = limits();
    const std::string groups =
        several() ? fmt::format(" in {} groups", placement_.groups) : std::string();
    fmt::print("{} records, {} ranks{}, {} slots of {} tokens, passes of up to {} rows\n",
               shape_.records, world_.size(), groups, plan.slots, plan.capacity, plan.max_rows);
}

Progress GenerateJob::progress(const GroupProgress& all) const {
    const bool drafts = k_ > 0 && all.steps > 0;
    return {.done = all.records,
            .total = shape_.records,
            .tokens = all.tokens,
            .accept_length =
                drafts ? 1.0 + static_cast<double>(all.accepted) / static_cast<double>(all.steps)
                       : 0.0};
}

void GenerateJob::show(const GroupProgress& all, Stop stop) {
    if (!leads_run()) return;
    log_.progress(progress(all));
    heartbeat_.beat(stop == Stop::none ? "running" : "draining", progress(all));
}

int GenerateJob::run_steps() {
    const ModelLimits& limits = models_->target().limits();
    Engine engine(*backend_, model_comm(), position_, models_->target(), models_->drafter(),
                  {.max_batched_tokens = prefill_rows(limits),
                   .k = k_,
                   .known_tokens = shape_.known_tokens,
                   .eos = models_->config().eos_token_ids,
                   .seed = options_.seed,
                   .accept = options_.accept,
                   .tokenizer = leads() ? files_->tokenizer() : tokenizer_.get(),
                   .steps = options_.eager ? StepWay::in_parts : StepWay::recorded});
    StopPlan plan(start_, std::chrono::seconds(options_.max_time),
                  std::chrono::seconds(options_.grace));
    RunLoop run(engine, plan, limits.slots,
                {.comm = *comm_,
                 .position = position_,
                 .log = log_,
                 .files = leads() ? &*files_ : nullptr,
                 .board = board_ ? &*board_ : nullptr,
                 .show = [this](const GroupProgress& all, Stop stop) { show(all, stop); }});
    const Stop stop = run.run();
    return end(engine.stats(), stop);
}

// Collective over all ranks.
RunEnd GenerateJob::gather(const EngineStats& stats, Stop stop) {
    GroupEnd own;
    own.stop = stop;
    if (leads() && (leads_run() || shape_.remaining > 0)) {
        own = {.parts = files_->parts(),
               .computed = files_->computed(),
               .errors = files_->totals().errors,
               .progress = progress_of(*files_, stats),
               .stats = stats,
               .stop = stop};
    }
    RunEnd run = gather_ends(world_, own, shape_.remaining);
    board_.reset();  // collective: others would wait for the result here
    return run;
}

int GenerateJob::end(const EngineStats& stats, Stop stop) {
    const RunEnd run = gather(stats, stop);
    if (leads_run()) {
        for (const GroupEnd& group : run.groups) {
            if (group.parts.group > 0) files_->add_group(group.parts, group.computed);
        }
        log_.finish(progress(run.done));
        heartbeat_.beat(run.resumable() ? "stopped" : "assembling", progress(run.done));
        if (run.resumable()) {
            log_.notice(fmt::format("stopped with {} of {} records done; the same command goes on",
                                    run.done.records, shape_.records));
        } else {
            finish(run.stats);
            heartbeat_.beat("done", progress(run.done));
        }
    }
    if (run.resumable()) return kResumable;
    return options_.fail_on_error && run.errors > 0 ? kRecordErrors : kSuccess;
}

void GenerateJob::finish(const EngineStats& stats) {
    position_.aside("assemble");
    facts_.graphs = stats.recorded_steps > 0;
    const ResultSummary totals = files_->finish(facts_);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    fmt::print("{}", summary_table(
                         totals, files_->resumed(),
                         {.stats = stats, .groups = placement_.groups, .k = k_, .seconds = seconds},
                         options_.out));
}

int GenerateJob::run() {
    place();
    if (!options_.dry_run) watch();
    try {
        start_up();
    } catch (const AgreedError&) {
        throw;
    } catch (...) {
        if (fatal_) fatal_->end(std::current_exception());
        throw;
    }
    if (options_.dry_run) {
        if (leads_run()) show_plan();
        return 0;
    }
    return fatal_->guard([&] { return shape_.remaining == 0 ? end({}, Stop::none) : run_steps(); });
}

}  // namespace

int run_generate(const GenerateOptions& options, const RankStart& start) {
    return GenerateJob(options, start.session, start.launcher).run();
}

}  // namespace quadrille
