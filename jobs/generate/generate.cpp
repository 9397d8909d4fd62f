// SPDX-License-Identifier: Apache-2.0
// Start-up in phases that all ranks agree on (docs/design.md §8), then each group of ranks for
// itself: records in, passes, generations out. The leader of a group reads and writes, its other
// ranks only compute; rank 0 leads the run and makes the result of all groups' parts.
#include "jobs/generate/generate.h"

#include "io/output.h"
#include "io/results/crash_log.h"
#include "io/results/result_files.h"
#include "io/text/tokenizer.h"
#include "jobs/common/model_session.h"
#include "jobs/common/provenance.h"
#include "jobs/generate/group_board.h"
#include "jobs/generate/group_end.h"
#include "jobs/generate/heartbeat.h"
#include "jobs/generate/leader_files.h"
#include "jobs/generate/member_files.h"
#include "jobs/generate/run_loop.h"
#include "jobs/generate/run_plan.h"
#include "jobs/generate/run_summary.h"
#include "jobs/generate/stop_plan.h"
#include "runtime/engine.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/last_words.h"
#include "runtime/record_runner.h"
#include "runtime/scorer.h"
#include "runtime/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {

namespace {

// Assembling goes on at a first signal: it is short, and ended it is done again.
constexpr int kSignalsAtTheEnd = 2;

class GenerateJob {
  public:
    GenerateJob(const GenerateOptions& options, const RankStart& start);
    int run();

  private:
    bool several() const { return session_.group_count() > 1; }

    void start_up();
    void check_accept_rule();
    void open_files();
    void join_groups();
    void make_board();
    void load_model();
    int skip() const;
    void check_launcher() const;

    // The exit code of a run that is done.
    int exit_code(int64_t errors) const {
        return options_.fail_on_error && errors > 0 ? kRecordErrors : kSuccess;
    }
    void leave_last_words(const Error& error);
    std::unique_ptr<RecordRunner> make_runner();
    int run_steps();
    void show(const GroupProgress& all, Stop stop);
    int end(const EngineStats& stats, Stop stop);
    RunEnd gather(const EngineStats& stats, Stop stop);
    void finish(const EngineStats& stats);
    Progress progress(const GroupProgress& all) const;

    const GenerateOptions& options_;
    std::chrono::steady_clock::time_point begin_;  // of the process
    StopSignals& signals_;
    StopPlan plan_;
    ModelSession session_;
    Communicator& world_;  // all ranks
    Heartbeat heartbeat_;
    RunFacts facts_;
    int32_t k_;
    RunShape shape_;
    ModelLimits limits_;
    bool warm_ = false;                       // what runs are records of the run
    std::optional<LeaderFiles> run_files_;    // of the run's leader
    std::optional<MemberFiles> group_files_;  // of other groups' leaders
    RunFiles* files_ = nullptr;               // the one of them that is there
    std::unique_ptr<Tokenizer> tokenizer_;    // of other ranks, for stop strings
    std::optional<GroupBoard> board_;         // where there are several groups
    std::optional<LastWords> last_words_;
};

GenerateJob::GenerateJob(const GenerateOptions& options, const RankStart& start)
    : options_(options),
      begin_(start.begin),
      signals_(start.signals),
      plan_(start.signals, start.begin, std::chrono::seconds(options.max_time),
            std::chrono::seconds(options.grace)),
      session_(options, start),
      world_(session_.world()),
      facts_{.start = utc_now(),
             .hosts = start.session.hosts(),
             .devices = {},
             .comm = {},
             .libraries = {}},
      k_(options.draft == "none" ? 0 : static_cast<int32_t>(options.k)) {}

int GenerateJob::run() {
    if (!options_.dry_run) {
        session_.watch(
            std::chrono::seconds(options_.watchdog),
            [this] {
                if (files_ != nullptr) files_->save_what_is_there(!session_.launcher_gone());
            },
            [this](const Error& error) { leave_last_words(error); });
    }
    session_.start_up([this] { start_up(); });
    if (shape_.skipped) return skip();
    if (options_.dry_run) {
        if (session_.leads_run()) {
            quadrille::show(stdout, describe_plan(session_, limits_, shape_.records));
        }
        return kSuccess;
    }
    return session_.guard(
        [&] { return shape_.remaining == 0 ? end({}, Stop::none) : run_steps(); });
}

void GenerateJob::start_up() {
    session_.choose_backend();
    facts_.devices = gather_texts(world_, session_.backend().device());
    facts_.comm = session_.model_comm().name();
    facts_.libraries = session_.libraries();
    facts_.groups = session_.group_count();
    session_.read_checkpoint(k_);
    session_.agree("accept rule", [&] { check_accept_rule(); });
    open_files();
    if (options_.verify_weights) session_.verify_weights();
    if (shape_.skipped || (shape_.remaining == 0 && !options_.dry_run)) return;
    limits_ = choose_limits(session_, options_, shape_, k_);
    facts_.max_seqs = limits_.slots;
    if (options_.dry_run) return session_.check_memory(limits_);
    if (several()) make_board();
    session_.agree("tokenizer", [&] {  // every rank looks for stop strings
        if (shape_.stop_text && !session_.leads()) tokenizer_ = make_tokenizer(options_.target);
    });
    load_model();
}

void GenerateJob::check_accept_rule() {
    if (!session_.models().drafts() || options_.accept != AcceptRule::rejection) return;
    const int64_t top_k = session_.models().draft_config().selector_top_k;
    if (top_k > RankCandidates::kMaxProposed) {
        throw Error(ErrorKind::usage,
                    fmt::format("--accept rejection: expected a drafter with selector_top_k of at "
                                "most {}, found {}",
                                RankCandidates::kMaxProposed, top_k));
    }
}

void GenerateJob::open_files() {
    JobModels& models = session_.models();
    const RunFiles::Around around{.options = options_,
                                  .config = models.config(),
                                  .identity = models.identity(),
                                  .backend = session_.backend(),
                                  .k = k_,
                                  .log = session_.log(),
                                  .before_commit = [this] { check_launcher(); }};
    session_.agree("files", [&] {
        if (!session_.leads_run()) return;
        const std::filesystem::path heartbeat =
            Heartbeat::check(options_.heartbeat, other_files(options_, options_.out));
        files_ = &run_files_.emplace(around);
        shape_ = run_files_->claim();
        if (!options_.dry_run) heartbeat_ = Heartbeat(heartbeat);
    });
    world_.broadcast_host(&shape_, sizeof shape_, 0);
    if (!several() || shape_.skipped) return;
    session_.agree("files of groups", [&] {
        if (!session_.leads() || session_.leads_run()) return;
        files_ = &group_files_.emplace(around, shape_);
    });
    join_groups();
}

// Every group must see the files that the run's leader sees, wherever its host has them.
void GenerateJob::join_groups() {
    const std::vector<std::string> runs =
        gather_texts(world_, files_ != nullptr ? files_->description() : std::string());
    std::vector<char> done(static_cast<size_t>(shape_.records), 0);
    std::vector<char> ends = done;
    if (session_.leads_run() && !options_.dry_run) {
        std::ranges::copy(files_->done(), done.begin());
        ends = files_->ends();
    }
    world_.broadcast_host(done.data(), std::ssize(done), 0);
    world_.broadcast_host(ends.data(), std::ssize(ends), 0);
    session_.agree("results of groups", [&] {
        if (files_ == nullptr) return;
        const auto group = static_cast<size_t>(session_.mpi().rank());
        if (runs[group] != runs[0]) {
            throw Error(ErrorKind::input,
                        fmt::format("{} sees other files than {}: {}", session_.mpi().host(),
                                    session_.mpi().hosts()[0], other_field(runs[0], runs[group])));
        }
        if (!group_files_ || options_.dry_run || shape_.remaining == 0) return;
        group_files_->join(session_.group_index(), std::vector<bool>(done.begin(), done.end()),
                           ends);
    });
}

// Open MPI without UCX has no one-sided calls between hosts that a program with threads may use.
void GenerateJob::make_board() {
    std::exception_ptr error;
    try {
        board_.emplace(session_.mpi(), session_.group_count());
    } catch (const Error& reason) {
        error = std::make_exception_ptr(
            Error(ErrorKind::comm,
                  fmt::format("{}: this MPI has no one-sided calls between these ranks, by which "
                              "groups share records; start a job a group, each with --shard I/{}",
                              reason.what(), session_.group_count())));
    }
    agree_on(world_, "counters of groups", error);
}

// Ranks outlive a killed mpirun by a second, and a new start of the run may be at work already.
void GenerateJob::check_launcher() const {
    if (session_.launcher_gone()) {
        throw Error(ErrorKind::comm, "the launcher of this rank is gone: nothing more is written");
    }
}

void GenerateJob::load_model() {
    session_.load(limits_, shape_.known_tokens, session_.model_comm());
    const std::string skipped = session_.models().target().skipped_tensors();
    if (!skipped.empty()) session_.log().notice(fmt::format("skipped tensors: {}", skipped));
}

// OUT is what this run would make.
int GenerateJob::skip() const {
    if (session_.leads_run()) {
        quadrille::show(stdout,
                        fmt::format("{}: complete, {} records of this run; nothing is left to do\n",
                                    options_.out, shape_.records));
    }
    return exit_code(shape_.errors);
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
    if (!session_.leads_run()) return;
    session_.log().progress(progress(all));
    heartbeat_.beat(stop == Stop::none ? "running" : "draining", progress(all));
}

// The next start is told which records ran. An error of a file, a network or another rank is no
// record's doing.
void GenerateJob::leave_last_words(const Error& error) {
    const bool own = error.kind() == ErrorKind::device || error.kind() == ErrorKind::internal;
    if (own && last_words_) last_words_->write(crash_cause(error.what()).c_str());
}

std::unique_ptr<RecordRunner> GenerateJob::make_runner() {
    Backend& backend = session_.backend();
    TargetModel& target = session_.models().target();
    const auto note = [this](auto running) { last_words_->set(crash_text(running)); };
    if (options_.scores) {
        return std::make_unique<Scorer>(backend, session_.model_comm(), session_.position(), target,
                                        note);
    }
    const EngineOptions options = {
        .max_batched_tokens = prefill_rows(target.limits()),
        .k = k_,
        .known_tokens = shape_.known_tokens,
        .eos = session_.models().config().eos_token_ids,
        .seed = options_.seed,
        .accept = options_.accept,
        .tokenizer = session_.leads() ? files_->tokenizer() : tokenizer_.get(),
        .steps = options_.eager ? StepWay::in_parts : StepWay::recorded,
        .on_running = [this, note](std::span<const Sequence> running) {
            std::vector<RecordKey> keys;
            for (const Sequence& sequence : running) keys.push_back(key_of(sequence.prompt));
            if (warm_) note(std::span<const RecordKey>(keys));
        }};
    auto engine = std::make_unique<Engine>(backend, session_.model_comm(), session_.position(),
                                           target, session_.models().drafter(), options);
    if (backend.records()) {
        warm_up(*engine, {limits_, options.max_batched_tokens, k_, options_.record});
    }
    warm_ = true;
    return engine;
}

int GenerateJob::run_steps() {
    last_words_.emplace(parts_folder(follow_links(options_.out)) / kCrashLog,
                        std::to_string(shape_.start));
    const std::unique_ptr<RecordRunner> runner = make_runner();
    RunLoop run(*runner, plan_, session_.models().target().limits().slots,
                {.comm = session_.group(),
                 .position = session_.position(),
                 .log = session_.log(),
                 .files = files_,
                 .board = board_ ? &*board_ : nullptr,
                 .show = [this](const GroupProgress& all, Stop stop) { show(all, stop); }});
    signals_.heed();
    const Stop stop = run.run();
    last_words_->set("");
    signals_.end_after(kSignalsAtTheEnd);
    return end(runner->stats(), stop);
}

// Collective over all ranks.
RunEnd GenerateJob::gather(const EngineStats& stats, Stop stop) {
    GroupEnd own;
    own.stop = stop;
    if (session_.leads() && (session_.leads_run() || shape_.remaining > 0)) {
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
    if (session_.leads_run()) {
        for (const GroupEnd& group : run.groups) {
            if (group.parts.group > 0) run_files_->add_group(group.parts, group.computed);
        }
        session_.log().finish(progress(run.done));
        heartbeat_.beat(run.resumable() ? "stopped" : "assembling", progress(run.done));
        if (run.resumable()) {
            session_.log().notice(
                fmt::format("stopped with {} of {} records done; the same command goes on",
                            run.done.records, shape_.records));
        } else {
            finish(run.stats);
            heartbeat_.beat("done", progress(run.done));
        }
    }
    return run.resumable() ? kResumable : exit_code(run.errors);
}

void GenerateJob::finish(const EngineStats& stats) {
    session_.position().aside("assemble");
    const auto elapsed = [this] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    };
    facts_.stats = stats;
    facts_.seconds = elapsed();
    const ResultSummary totals = run_files_->finish(facts_);
    if (options_.scores) {
        quadrille::show(
            stdout,
            fmt::format("{}: {} records, {} with an error; {} tokens scored, {:.1f} s\n",
                        options_.out, totals.records, totals.errors, totals.tokens, elapsed()));
        return;
    }
    quadrille::show(stdout, summary_table(totals, run_files_->resumed(),
                                          {.stats = stats,
                                           .groups = session_.group_count(),
                                           .k = k_,
                                           .seconds = elapsed(),
                                           .restarts = shape_.start},
                                          options_.out));
}

}  // namespace

int run_generate(const GenerateOptions& options, const RankStart& start) {
    return GenerateJob(options, start).run();
}

}  // namespace quadrille
