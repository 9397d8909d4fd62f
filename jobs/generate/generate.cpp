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
#include "jobs/common/results_tsv.h"
#include "jobs/generate/group_board.h"
#include "jobs/generate/group_end.h"
#include "jobs/generate/group_start.h"
#include "jobs/generate/heartbeat.h"
#include "jobs/generate/leader_files.h"
#include "jobs/generate/member_files.h"
#include "jobs/generate/run_engine.h"
#include "jobs/generate/run_loop.h"
#include "jobs/generate/run_plan.h"
#include "jobs/generate/run_summary.h"
#include "jobs/generate/start_figures.h"
#include "jobs/generate/stop_plan.h"
#include "jobs/roofline/roofline.h"
#include "jobs/roofline/timed_comm.h"
#include "runtime/engine.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/last_words.h"
#include "runtime/record_runner.h"
#include "runtime/seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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
    void load_model();
    int skip() const;
    void check_launcher() const;

    // The exit code of a run that is done.
    int exit_code(int64_t errors) const {
        return options_.fail_on_error && errors > 0 ? kRecordErrors : kSuccess;
    }
    void leave_last_words(const Error& error);
    int run_steps();
    void measure(const StartFigures& own, const CollectiveCounts& pass);
    void show(const GroupProgress& all, Stop stop);
    int end(const StartFigures& figures, Stop stop);
    RunEnd gather(const StartFigures& figures, Stop stop);
    void finish(RunEnd& run);
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
    std::optional<LeaderFiles> run_files_;    // of the run's leader
    std::optional<MemberFiles> group_files_;  // of other groups' leaders
    RunFiles* files_ = nullptr;               // the one of them that is there
    std::unique_ptr<Tokenizer> tokenizer_;    // of other ranks, for stop strings
    std::optional<GroupBoard> board_;         // where there are several groups
    std::optional<LastWords> last_words_;
    std::optional<TimedComm> comm_;  // of the model
    StartFigures ready_;             // what start-up took
    std::optional<Roofline> roofline_;
    double measuring_ = 0;  // seconds, no part of the run's
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
    comm_.emplace(session_.model_comm());
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
    if (several()) make_board(session_, board_);
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
        check_results_tsv(options_);
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
    join_groups(session_, files_, group_files_ ? &*group_files_ : nullptr, shape_,
                options_.dry_run);
}

// Ranks outlive a killed mpirun by a second, and a new start of the run may be at work already.
void GenerateJob::check_launcher() const {
    if (session_.launcher_gone()) {
        throw Error(ErrorKind::comm, "the launcher of this rank is gone: nothing more is written");
    }
}

void GenerateJob::load_model() {
    session_.load(limits_, shape_.known_tokens, *comm_);
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

int GenerateJob::run_steps() {
    last_words_.emplace(parts_folder(follow_links(options_.out)) / kCrashLog,
                        std::to_string(shape_.start));
    const std::unique_ptr<RecordRunner> runner =
        make_runner(session_, *comm_, options_,
                    {.tokenizer = session_.leads() ? files_->tokenizer() : tokenizer_.get(),
                     .known_tokens = shape_.known_tokens,
                     .k = k_,
                     .limits = limits_,
                     .last_words = *last_words_});
    ready_.start_up = seconds_since(begin_);
    ready_.collectives = comm_->seconds();
    const auto figures = [&](const LoopTimes& loop) {
        return StartFigures{.stats = runner->stats(),
                            .loop = loop,
                            .seconds = seconds_since(begin_),
                            .start_up = ready_.start_up,
                            .collectives = comm_->seconds() - ready_.collectives};
    };
    RunLoop run(
        *runner, plan_, session_.models().target().limits().slots,
        {.comm = session_.group(),
         .model_comm = *comm_,
         .position = session_.position(),
         .log = session_.log(),
         .files = files_,
         .board = board_ ? &*board_ : nullptr,
         .show = [this](const GroupProgress& all, Stop stop) { show(all, stop); },
         .keep_figures = [&](const LoopTimes& loop) { files_->keep_figures(figures(loop)); }});
    signals_.heed();
    const Stop stop = run.run();
    last_words_->set("");
    signals_.end_after(kSignalsAtTheEnd);
    const StartFigures own = figures(run.times());
    if (stop == Stop::none) measure(own, run.pass_collectives());
    return end(own, stop);
}

// What the steps of the first group, whose leader tells of the run, take at best. A run of some
// seconds is not worth another one.
void GenerateJob::measure(const StartFigures& own, const CollectiveCounts& pass) {
    constexpr double kWorthIt = 10;  // seconds of passes
    if (options_.scores || session_.group_index() != 0) return;
    const EngineStats& stats = own.stats;
    const bool worth_it = stats.decode_seconds > kWorthIt || !options_.tsv.empty();
    const bool wanted = stats.decode_steps > 0 && worth_it;
    if (session_.group().max_host(wanted ? 1 : 0) == 0) return;
    session_.position().aside("roofline");
    const auto begin = std::chrono::steady_clock::now();
    const auto records = static_cast<double>(std::max<int64_t>(stats.first_tokens, 1));
    const auto tokens = static_cast<double>(stats.emitted);
    MeanPass mean{
        .records = static_cast<double>(stats.decode_records) /
                   static_cast<double>(std::max<int64_t>(stats.decode_steps, 1)),
        .context = std::llround((static_cast<double>(stats.prefill_tokens) + tokens / 2) / records),
        .k = k_};
    if (files_ != nullptr && files_->totals().steps > 0) {
        mean.accepted = files_->totals().accepted_per_step();
    }
    roofline_ =
        measure_roofline(session_.backend(), *comm_, step_model(session_.models()), mean, pass);
    measuring_ = seconds_since(begin);
}

// Collective over all ranks.
RunEnd GenerateJob::gather(const StartFigures& figures, Stop stop) {
    GroupEnd own;
    own.stop = stop;
    const bool took_part = session_.leads() && (session_.leads_run() || shape_.remaining > 0);
    if (took_part) {
        own = {.parts = files_->parts(),
               .computed = files_->computed(),
               .errors = files_->totals().errors,
               .progress = progress_of(*files_, figures.stats),
               .figures = figures,
               .stop = stop};
    }
    RunEnd run = gather_ends(world_, own, shape_.remaining);
    run.latencies = gather_latencies(
        world_, took_part ? files_->latencies() : std::vector<Latency>(), several());
    board_.reset();  // collective: others would wait for the result here
    return run;
}

int GenerateJob::end(const StartFigures& figures, Stop stop) {
    RunEnd run = gather(figures, stop);
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
            finish(run);
            heartbeat_.beat("done", progress(run.done));
        }
    }
    return run.resumable() ? kResumable : exit_code(run.errors);
}

void GenerateJob::finish(RunEnd& run) {
    session_.position().aside("assemble");
    StartSummary summary{.now = run.figures,
                         .all = run_files_->earlier(),
                         .groups = session_.group_count(),
                         .k = k_,
                         .restarts = shape_.start,
                         .latencies = std::move(run.latencies),
                         .roofline = roofline_};
    summary.now.average(summary.groups);
    const StartFigures earlier = summary.all;
    const auto tell_time = [&] {
        summary.now.seconds = seconds_since(begin_) - measuring_;
        summary.all = earlier;
        summary.all += summary.now;
    };
    tell_time();
    facts_.last = summary.now;
    facts_.all = summary.all;
    const ResultSummary totals = run_files_->finish(facts_);
    tell_time();
    if (options_.scores) {
        quadrille::show(
            stdout, fmt::format("{}: {} records, {} with an error; {} tokens scored, {:.1f} s\n",
                                options_.out, totals.records, totals.errors, totals.tokens,
                                summary.now.seconds));
    } else {
        quadrille::show(stdout,
                        summary_table(totals, run_files_->resumed(), summary, options_.out));
    }
    if (options_.tsv.empty()) return;
    append_results(
        options_.tsv,
        summary_rows(totals, summary,
                     {.date = utc_now(),
                      .hardware = session_.backend().device(),
                      .shape = run_shape(options_, session_.backend().name(), facts_, k_)}));
}

}  // namespace

int run_generate(const GenerateOptions& options, const RankStart& start) {
    return GenerateJob(options, start).run();
}

}  // namespace quadrille
