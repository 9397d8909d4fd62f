// SPDX-License-Identifier: Apache-2.0
// Start-up in phases that all ranks agree on (docs/design.md §8), then one loop: records in,
// passes, generations out. The leader of a group reads and writes; its other ranks only compute.
#include "jobs/generate.h"

#include "drafter/dflash2.h"
#include "drafter/draft_plan.h"
#include "io/model_config.h"
#include "io/result_writer.h"
#include "io/run_folder.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"
#include "io/utf8.h"
#include "jobs/backend_choice.h"
#include "jobs/heartbeat.h"
#include "jobs/prompt_files.h"
#include "jobs/provenance.h"
#include "jobs/record_source.h"
#include "jobs/stop_plan.h"
#include "jobs/summary.h"
#include "kernels/backend.h"
#include "runtime/agree.h"
#include "runtime/engine.h"
#include "runtime/fatal.h"
#include "runtime/groups.h"
#include "runtime/log.h"
#include "runtime/position.h"
#include "runtime/record_block.h"
#include "runtime/target_model.h"
#include "runtime/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

namespace quadrille {

namespace {

constexpr int64_t kSlice = 256;  // records a leader reads at once

// What every rank must know and only the leader can find out.
struct RunShape {
    int64_t records = 0;
    int64_t capacity = 0;      // tokens per slot
    int64_t known_tokens = 0;  // ids from here on are never chosen
    int64_t remaining = 0;     // records that no earlier start has done
    bool stop_text = false;    // some record has stop strings
};

class GenerateJob {
  public:
    GenerateJob(const GenerateOptions& options, MpiSession& session, Parent parent);
    int run();

  private:
    bool leads() const { return session_.rank() == 0; }
    void start_up();
    void watch();
    void choose_backend();
    void read_checkpoint();
    void open_files();
    void load_model();
    Communicator& model_comm() { return staged_comm_ ? *staged_comm_ : comm_; }
    ModelLimits limits() const;
    void show_plan() const;

    void check_launcher() const;
    void save();
    int run_steps();
    bool refill(Engine& engine);
    void deliver(Engine& engine);
    void drain(Engine& engine, const std::string& reason);
    int end(const EngineStats& stats, bool stopped);
    void finish(const EngineStats& stats);
    Progress progress(const EngineStats& stats) const;
    std::string text_of(const Generation& generation) const;

    const GenerateOptions& options_;
    MpiSession& session_;
    Parent parent_;
    Communicator& comm_;
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
    std::unique_ptr<Communicator> staged_comm_;  // where MPI cannot reach the backend's memory
    ModelConfig config_;
    std::optional<Checkpoint> checkpoint_;
    std::optional<DraftConfig> draft_config_;  // absent: no drafter
    std::optional<Checkpoint> draft_checkpoint_;
    std::unique_ptr<Tokenizer> tokenizer_;  // of other ranks: for stop strings only
    // Leader only.
    std::optional<PromptFiles> prompt_files_;
    std::optional<RecordSource> source_;
    h5::Attributes fingerprint_;
    std::optional<ResultWriter> writer_;
    int64_t next_record_ = 0;
    ResultSummary totals_;
    bool saving_ = false;  // in the writer: an error that ends the job may come from there

    std::optional<TargetModel> model_;
    std::optional<DFlash2> drafter_;
};

GenerateJob::GenerateJob(const GenerateOptions& options, MpiSession& session, Parent parent)
    : options_(options),
      session_(session),
      parent_(parent),
      comm_(session.world()),
      log_(session.rank() == 0),
      facts_{.start = utc_now(), .hosts = session.hosts(), .devices = {}, .comm = {}} {}

void GenerateJob::start_up() {
    agree(comm_, "ranks", [&] {
        const Placement placement =
            place_ranks(session_.hosts(), options_.tp)[static_cast<size_t>(session_.rank())];
        if (placement.groups > 1) {
            throw Error(ErrorKind::usage,
                        fmt::format("--tp {}: {} ranks would form {} groups; several groups in one "
                                    "job are not supported yet: start one job a group",
                                    options_.tp, session_.size(), placement.groups));
        }
    });
    choose_backend();
    facts_.devices = gather_texts(comm_, backend_->device());
    facts_.comm = model_comm().name();
    agree(comm_, "checkpoint", [&] { read_checkpoint(); });
    agree(comm_, "files", [&] {
        if (leads()) open_files();
    });
    comm_.broadcast_host(&shape_, sizeof shape_, 0);
    if (options_.dry_run || shape_.remaining == 0) return;
    agree(comm_, "tokenizer", [&] {  // every rank looks for stop strings
        if (shape_.stop_text && !leads()) tokenizer_ = make_tokenizer(options_.target);
    });
    agree(comm_, "weights", [&] { load_model(); });
}

void GenerateJob::choose_backend() {
    BackendChoice choice = quadrille::choose_backend(options_.backend, session_, comm_, log_);
    backend_ = std::move(choice.backend);
    staged_comm_ = std::move(choice.staged);
}

// From here on a rank that dies or falls silent ends the job with a word about it.
void GenerateJob::watch() {
    fatal_.emplace(
        Fatal::Rank{.rank = session_.rank(), .size = session_.size(), .host = session_.host()},
        position_, &MpiSession::abort);
    fatal_->at_end([this] {
        prompt_files_.reset();  // its temporary files would stay
        if (writer_ && !saving_ && !parent_.gone()) writer_->commit();
    });
    if (options_.watchdog > 0) {
        watchdog_.emplace(session_, position_, *fatal_, parent_,
                          std::chrono::seconds(options_.watchdog));
    }
}

void GenerateJob::read_checkpoint() {
    config_ = read_model_config(options_.target);
    plan_shards(config_, comm_.size(), comm_.rank());
    checkpoint_.emplace(options_.target);
    if (options_.draft == "none") return;
    k_ = static_cast<int32_t>(options_.k);
    draft_config_ = read_draft_config(options_.draft);
    check_draft_config(*draft_config_, config_, k_);
    plan_draft(*draft_config_, options_.draft_placement, comm_.size(), comm_.rank());
    draft_checkpoint_.emplace(options_.draft);
    check_draft_tensors(*draft_config_, *draft_checkpoint_);
    if (options_.accept == AcceptRule::rejection &&
        draft_config_->selector_top_k > Offers::kMaxProposed) {
        throw Error(ErrorKind::usage,
                    fmt::format("--accept rejection: expected a drafter with selector_top_k of at "
                                "most {}, found {}",
                                Offers::kMaxProposed, draft_config_->selector_top_k));
    }
}

void GenerateJob::open_files() {
    const bool with_tokenizer = has_tokenizer(options_.target) && text_supported();
    if (with_tokenizer) tokenizer_ = make_tokenizer(options_.target);
    prompt_files_.emplace(options_);
    for (const std::string& notice : prompt_files_->notices()) log_.notice(notice);
    source_.emplace(options_, prompt_files_->paths(), config_.vocab_size, tokenizer_.get());
    for (const std::string& notice : source_->notices()) log_.notice(notice);
    shape_.records = source_->record_count();
    if (options_.max_context > config_.max_position_embeddings) {
        throw Error(ErrorKind::usage,
                    fmt::format("--max-context: expected at most {}, the model's "
                                "max_position_embeddings, found {}",
                                config_.max_position_embeddings, options_.max_context));
    }
    shape_.capacity = options_.max_context > 0 ? options_.max_context : source_->largest_total();
    shape_.capacity = std::clamp<int64_t>(shape_.capacity, 2, config_.max_position_embeddings);
    shape_.known_tokens = tokenizer_ ? tokenizer_->size() : config_.vocab_size;
    shape_.stop_text = source_->has_stop_text();
    source_->set_context(shape_.capacity);
    if (options_.strict) {  // a prompt that fills the context counts too
        const std::string error = source_->first_error();
        if (!error.empty()) {
            throw Error(ErrorKind::input, fmt::format("{} (--strict)", error));
        }
    }

    fingerprint_ =
        fingerprint(options_, *checkpoint_, draft_checkpoint_ ? &*draft_checkpoint_ : nullptr,
                    tokenizer_.get(), source_->digest(), k_, shape_.capacity, *backend_);
    if (options_.dry_run) {
        check_output(options_.out, options_.output_exists == OutputExists::overwrite);
        check_run(parts_folder(options_.out), fingerprint_);
        return;
    }
    ResultOptions results;
    results.out = options_.out;
    results.overwrite = options_.output_exists == OutputExists::overwrite;
    results.layout.k = k_;
    results.layout.text = tokenizer_ && !options_.no_text;
    results.layout.logprobs = source_->largest_logprobs();
    results.layout.origin = source_->has_origin();
    if (results.layout.origin) results.layout.sources = source_->names();
    results.records = source_->keys();
    results.ids = source_->ids();
    results.fingerprint = fingerprint_;
    results.locking = options_.locking;
    results.before_commit = [this] { check_launcher(); };
    writer_.emplace(std::move(results));
    for (const std::string& notice : writer_->notices()) log_.notice(notice);
    totals_ = writer_->resumed();
    shape_.remaining = writer_->remaining();
    if (writer_->restarts() > 0) {
        log_.notice(fmt::format("going on with {}: {} of {} records are done",
                                parts_folder(options_.out).string(), totals_.records,
                                shape_.records));
    }
    heartbeat_ = Heartbeat(options_.heartbeat);
}

// Ranks outlive a killed mpirun by a second, and a new start of the run may be at work already.
void GenerateJob::check_launcher() const {
    if (parent_.gone()) {
        throw Error(ErrorKind::comm, "the launcher of this rank is gone: nothing more is written");
    }
}

ModelLimits GenerateJob::limits() const {
    const int64_t slots =
        std::clamp<int64_t>(options_.max_seqs, 1, std::max<int64_t>(shape_.records, 1));
    // No pass is larger than all records at full length.
    const int64_t whole =
        (slots * shape_.capacity + kPrefillGrid - 1) / kPrefillGrid * kPrefillGrid;
    const int64_t rows = std::max(std::min(options_.max_batched_tokens, whole), slots * (k_ + 1));
    return {.slots = static_cast<int32_t>(slots),
            .capacity = shape_.capacity,
            .max_rows = static_cast<int32_t>(rows),
            .max_block = k_ + 1};
}

void GenerateJob::load_model() {
    model_.emplace(*backend_, model_comm(), position_, config_, *checkpoint_, limits(),
                   draft_config_ ? draft_config_->target_layer_ids : std::vector<int64_t>{});
    if (draft_config_) {
        drafter_.emplace(*backend_, model_comm(), position_, *draft_config_, *draft_checkpoint_,
                         *model_,
                         DraftOptions{.placement = options_.draft_placement,
                                      .known_tokens = shape_.known_tokens});
    }
    const std::string skipped = model_->skipped_tensors();
    if (!skipped.empty()) log_.notice(fmt::format("skipped tensors: {}", skipped));
}

void GenerateJob::show_plan() const {
    const ModelLimits plan = limits();
    fmt::print("{} records, {} ranks, {} slots of {} tokens, passes of up to {} rows\n",
               shape_.records, comm_.size(), plan.slots, plan.capacity, plan.max_rows);
}

// The next records that no earlier start has done; false: there are none.
bool GenerateJob::refill(Engine& engine) {
    std::vector<Prompt> prompts;
    if (leads()) {
        const auto open = [&](int64_t record) {
            return record < shape_.records &&
                   !writer_->is_done(source_->keys()[static_cast<size_t>(record)]);
        };
        while (next_record_ < shape_.records && !open(next_record_)) ++next_record_;
        int64_t count = 0;
        while (count < kSlice && open(next_record_ + count)) ++count;
        prompts = source_->read(next_record_, count);
        next_record_ += count;
    }
    prompts = broadcast_records(comm_, 0, std::move(prompts));
    const bool more = !prompts.empty();
    for (Prompt& prompt : prompts) engine.submit(std::move(prompt));
    return more;
}

std::string GenerateJob::text_of(const Generation& generation) const {
    if (generation.text_end >= 0) {  // a stop string begins there
        std::string bytes;
        for (const int32_t token : generation.tokens) {
            if (!tokenizer_->is_special(token)) bytes += tokenizer_->token_bytes(token);
        }
        bytes.resize(static_cast<size_t>(generation.text_end));
        return replace_broken_utf8(bytes);
    }
    const bool ended = generation.finish_reason == FinishReason::eos ||
                       generation.finish_reason == FinishReason::stop;
    const std::span<const int32_t> tokens(generation.tokens);
    return tokenizer_->decode(tokens.first(tokens.size() - (ended ? 1 : 0)), true);
}

void GenerateJob::deliver(Engine& engine) {
    std::vector<Generation> finished = engine.take_finished();
    if (!leads()) return;
    position_.aside("write");
    saving_ = true;
    for (Generation& generation : finished) {
        totals_.add(generation);
        if (writer_->layout().text) generation.text = text_of(generation);
        writer_->add(std::move(generation));
    }
    writer_->commit_if_old();
    saving_ = false;
    log_.progress(progress(engine.stats()));
}

Progress GenerateJob::progress(const EngineStats& stats) const {
    return {.done = totals_.records,
            .total = shape_.records,
            .tokens = stats.emitted,
            .accept_length = k_ > 0 && totals_.steps > 0 ? totals_.accept_length() : 0.0};
}

void GenerateJob::save() {
    position_.aside("write");
    saving_ = true;
    writer_->commit();
    saving_ = false;
}

// Saves at once: the launcher may leave its ranks no more than a second.
void GenerateJob::drain(Engine& engine, const std::string& reason) {
    engine.drop_queued();
    if (!leads()) return;
    save();
    log_.notice(fmt::format("{}: no record is started any more, {} are still running", reason,
                            engine.in_flight()));
}

int GenerateJob::run_steps() {
    Engine engine(*backend_, model_comm(), position_, *model_, drafter_ ? &*drafter_ : nullptr,
                  {.max_batched_tokens = static_cast<int32_t>(model_->limits().max_rows /
                                                              kPrefillGrid * kPrefillGrid),
                   .k = k_,
                   .known_tokens = shape_.known_tokens,
                   .eos = config_.eos_token_ids,
                   .seed = options_.seed,
                   .accept = options_.accept,
                   .tokenizer = tokenizer_.get()});
    StopPlan plan(start_, std::chrono::seconds(options_.max_time),
                  std::chrono::seconds(options_.grace));
    Stop stop = Stop::none;
    bool more = true;
    while (more || !engine.idle()) {
        const Stop before = std::exchange(stop, plan.agree(comm_));
        if (before == Stop::none && stop != Stop::none) {
            drain(engine, plan.reason());
            more = false;
        }
        if (stop == Stop::now) break;
        while (more && engine.queued() < model_->limits().slots) more = refill(engine);
        engine.step();
        deliver(engine);
        if (leads()) {
            heartbeat_.beat(stop == Stop::none ? "running" : "draining", progress(engine.stats()));
        }
    }
    return end(engine.stats(), stop != Stop::none);
}

// Other ranks know what is computed, the leader also what earlier starts have left.
int GenerateJob::end(const EngineStats& stats, bool stopped) {
    int64_t left[] = {0, 0};  // records not done, records with an error
    if (leads()) {
        left[0] = writer_->remaining();
        left[1] = totals_.errors;
    }
    comm_.broadcast_host(left, sizeof left, 0);
    const bool resumable = stopped && left[0] > 0;
    if (leads()) {
        log_.finish(progress(stats));
        if (resumable) {
            save();
            heartbeat_.beat("stopped", progress(stats));
            log_.notice(fmt::format("stopped with {} of {} records done; the same command goes on",
                                    totals_.records, shape_.records));
        } else {
            finish(stats);
        }
    }
    if (resumable) return kResumable;
    return options_.fail_on_error && left[1] > 0 ? 1 : 0;
}

void GenerateJob::finish(const EngineStats& stats) {
    position_.aside("assemble");
    heartbeat_.beat("assembling", progress(stats));
    facts_.restarts = writer_->restarts();
    facts_.records_computed = writer_->computed();
    saving_ = true;
    const ResultSummary totals = writer_->finish(provenance(options_, fingerprint_, facts_));
    saving_ = false;
    heartbeat_.beat("done", progress(stats));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    fmt::print("{}", summary_table(totals, writer_->resumed(), stats, k_, seconds, options_.out));
}

int GenerateJob::run() {
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
        if (leads()) show_plan();
        return 0;
    }
    return fatal_->guard([&] { return shape_.remaining == 0 ? end({}, false) : run_steps(); });
}

}  // namespace

int run_generate(const GenerateOptions& options, MpiSession& session, Parent parent) {
    return GenerateJob(options, session, parent).run();
}

}  // namespace quadrille
