// SPDX-License-Identifier: Apache-2.0
#include "jobs/train/train.h"

#include "drafter/train/train_state.h"
#include "io/capture/capture_reader.h"
#include "io/checkpoint/module_names.h"
#include "io/digest.h"
#include "io/files.h"
#include "jobs/common/model_session.h"
#include "jobs/common/table.h"
#include "jobs/train/train_log.h"
#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using Clock = std::chrono::steady_clock;

class TrainJob {
  public:
    TrainJob(const TrainOptions& options, const RankStart& start)
        : options_(options), signals_(start.signals), session_(options, start) {}
    int run();

  private:
    void start_up();
    void check_groups() const;
    void open_capture();
    void check_out() const;
    void make_trainer();
    void load_values();
    std::string run_name() const;
    double rate_of(int64_t step) const;
    TrainValues values() { return {trainer_->weights(), trainer_->first(), trainer_->second()}; }
    void validate(int64_t step);
    void save(int64_t step);
    int train();
    int finish();

    const TrainOptions& options_;
    StopSignals& signals_;
    mutable ModelSession session_;
    std::filesystem::path out_;
    std::optional<CaptureReader> reader_;
    std::optional<Parameters> parameters_;
    std::optional<TrainData> data_;
    std::optional<Trainer> trainer_;
    std::optional<TrainLog> log_;
    std::string run_;
    int64_t steps_ = 0, done_ = 0;
    std::optional<LossReport> before_;
    LossReport after_;
    Clock::time_point begin_;
};

int TrainJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    int code = kSuccess;
    // As a start-up: what one rank cannot write ends all of them alike.
    session_.start_up([&] { code = train(); });
    return code;
}

void TrainJob::start_up() {
    out_ = options_.out;
    agree(session_.world(), "groups", [&] { check_groups(); });
    session_.choose_backend();
    session_.read_checkpoint(1);
    agree(session_.world(), "capture", [&] { open_capture(); });
    agree(session_.world(), "output", [&] { check_out(); });
    agree(session_.world(), "drafter", [&] { make_trainer(); });
    agree(session_.world(), "state", [&] { load_values(); });
    agree(session_.world(), "output folder", [&] {
        if (session_.leads_run()) create_folder(out_);
    });
    if (session_.leads_run()) log_.emplace(out_ / "train.tsv", done_);
}

void TrainJob::check_groups() const {
    if (session_.group_count() > 1) {
        throw Error(ErrorKind::usage,
                    fmt::format("train: {} ranks would form {} groups; expected 1, 2 or 4 ranks",
                                session_.world().size(), session_.group_count()));
    }
}

void TrainJob::open_capture() {
    const JobModels& models = session_.models();
    const DraftConfig& draft = models.draft_config();
    reader_.emplace(options_.capture,
                    CaptureWanted{.tap_layers = draft.target_layer_ids,
                                  .hidden = draft.hidden_size,
                                  .vocab = draft.vocab_size,
                                  .checkpoint_digest = models.checkpoint().digest()});
    parameters_.emplace(draft);
    data_.emplace(*reader_, draft, options_.data);
    const int64_t of_step = options_.trainer.parts * options_.data.sequences;
    const int64_t drawn = options_.epochs * data_->training();
    steps_ = options_.steps > 0 ? options_.steps : (drawn + of_step - 1) / of_step;
    run_ = run_name();
}

// Nothing but a drafter of this job is ever replaced.
void TrainJob::check_out() const {
    namespace fs = std::filesystem;
    if (!fs::exists(out_)) {
        if (fs::is_directory(folder_of(out_))) return;
        throw Error(ErrorKind::io, fmt::format("{}: no such folder", folder_of(out_).string()));
    }
    if (!fs::is_directory(out_)) {
        throw Error(ErrorKind::usage,
                    fmt::format("--out: expected a folder, found the file {}", out_.string()));
    }
    for (const std::string& input : {options_.target, options_.draft}) {
        if (fs::equivalent(out_, input)) {
            throw Error(ErrorKind::usage,
                        fmt::format("--out {}: is an input of the job", out_.string()));
        }
    }
    if (fs::is_empty(out_)) return;
    // A state beside a drafter is of a run that replaces it, or that ended as it had written it.
    if (has_state(out_)) return;
    // The first file of a run is its log, which a full disk may have cut short.
    const bool own = fs::exists(out_ / "train.tsv") || fs::exists(out_ / "train.tsv.tmp");
    const bool complete = fs::exists(out_ / "model.safetensors");
    if (own && (!complete || options_.overwrite)) return;
    throw Error(ErrorKind::usage, fmt::format("--out {}: {}", out_.string(),
                                              own ? "holds a drafter; --overwrite replaces it"
                                                  : "expected an empty folder or one of train"));
}

void TrainJob::make_trainer() {
    const JobModels& models = session_.models();
    const DraftConfig& draft = models.draft_config();
    trainer_.emplace(session_.backend(), session_.group(), draft, *parameters_,
                     TrainLimits{data_->context_limit(), data_->block_limit()}, options_.trainer);
    const auto matrix = [&](const std::string& name) {
        return read_matrix(models.checkpoint(), name, draft.vocab_size, draft.hidden_size);
    };
    trainer_->load(read_parameters(*parameters_, models.draft_checkpoint()),
                   matrix(text_prefix(models.checkpoint()) + "embed_tokens"), matrix("lm_head"));
}

void TrainJob::load_values() {
    done_ = load_state(out_, run_, values());
}

std::string TrainJob::run_name() const {
    const TrainOptions& o = options_;
    const LossOptions& l = o.trainer.loss;
    const DataOptions& d = o.data;
    Digest digest;
    digest.add(session_.models().checkpoint().digest());
    digest.add(session_.models().draft_checkpoint().digest());
    digest.add(
        std::as_bytes(std::span(reader_->tokens_of(0), static_cast<size_t>(reader_->tokens()))));
    digest.add(fmt::format("{} {} {} {} {} {} {} {}", static_cast<int>(o.trainer.stage),
                           o.trainer.parts, o.trainer.beta1, o.trainer.beta2, o.trainer.decay,
                           o.trainer.clip, o.trainer.best, steps_));
    digest.add(fmt::format("{} {} {}", o.rate, o.warm_up, o.last_rate));
    digest.add(fmt::format("{} {} {} {} {} {} {} {}", l.block_ce, l.kl, l.selector, l.anchor,
                           l.hidden, static_cast<int>(l.reading), static_cast<int>(l.decay),
                           l.decay_value));
    digest.add(fmt::format("{} {} {} {} {} {} {} {}", d.sequences, d.anchors, d.length,
                           d.validation, static_cast<int>(d.noise), d.noise_size, d.shuffle,
                           d.seed));
    return digest.hex();
}

// Linear warm-up, then a cosine down to last_rate of the rate.
double TrainJob::rate_of(int64_t step) const {
    const auto number = static_cast<double>(step);
    const double warm = std::ceil(options_.warm_up * static_cast<double>(steps_));
    if (number <= warm) return options_.rate * number / warm;
    const double part = (number - warm) / std::max(1.0, static_cast<double>(steps_) - warm);
    const double wave = 0.5 * (1 + std::cos(std::numbers::pi * part));
    return options_.rate * (options_.last_rate + (1 - options_.last_rate) * wave);
}

void TrainJob::validate(int64_t step) {
    session_.position().enter(step, "validate");
    after_ = trainer_->measure(data_->validation_batches(),
                               [&](int64_t i) { return data_->validation_batch(i); });
    if (!before_) before_ = after_;
    if (!session_.leads_run()) return;
    log_->add(step, "validation", 0, {after_, 0});
    session_.log().notice(fmt::format(
        "step {} of {}: validation loss {:.4f}, accept length {:.3f}, right behind true tokens "
        "{:.1f} %",
        step, steps_, after_.total, after_.accept_length(), 100 * teacher_forced(after_)));
}

void TrainJob::save(int64_t step) {
    agree(session_.world(), "save the state", [&] {
        if (!session_.leads_run()) return;
        log_->save();
        save_state(out_, run_, step, values());
    });
}

int TrainJob::train() {
    signals_.heed();
    begin_ = Clock::now();
    session_.log().notice(fmt::format("{} sequences to train on, {} held back; {} steps{}",
                                      data_->training(), data_->validation(), steps_,
                                      done_ > 0 ? fmt::format("; going on behind {}", done_) : ""));
    if (done_ == 0) validate(0);
    int64_t tokens = 0;
    for (int64_t step = done_ + 1; step <= steps_; ++step) {
        session_.position().enter(step, "train");
        const double rate = rate_of(step);
        const StepResult result =
            trainer_->step(step, rate, [&](int64_t part) { return data_->draw(part); });
        tokens += result.report.slots;
        if (session_.leads_run()) log_->add(step, "train", rate, result);
        session_.log().progress({.done = step,
                                 .total = steps_,
                                 .tokens = tokens,
                                 .accept_length = result.report.accept_length()});
        if (step % options_.validate_every == 0 && step < steps_) validate(step);
        const bool stop = step < steps_ && signals_.agreed(session_.world()) != Stop::none;
        if (stop || (step % options_.save_every == 0 && step < steps_)) save(step);
        if (stop) {
            session_.log().notice(
                fmt::format("stopped at step {} of {}; the same command goes on", step, steps_));
            return kResumable;
        }
    }
    save(steps_);  // what finish cannot write is not computed again
    validate(steps_);
    return finish();
}

int TrainJob::finish() {
    agree(session_.world(), "write the drafter", [&] {
        if (!session_.leads_run()) return;
        log_->save();
        write_drafter(out_, *parameters_, trainer_->weights(),
                      std::filesystem::path(options_.draft) / "config.json");
        remove_state(out_);
    });
    if (!session_.leads_run()) return kSuccess;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_);
    Table table("lrr");
    table.row({"validation", "before", "after"});
    const auto row = [&](const char* name, double before, double after) {
        table.row(
            {name, done_ > 0 ? "-" : fmt::format("{:.4f}", before), fmt::format("{:.4f}", after)});
    };
    row("loss", before_->total, after_.total);
    row("accept length", before_->accept_length(), after_.accept_length());
    row("of the head alone", before_->accept_length_by_head(), after_.accept_length_by_head());
    row("right behind true tokens", teacher_forced(*before_), teacher_forced(after_));
    show(stdout, table.text() + fmt::format("{} steps in {}, written to {}\n", steps_ - done_,
                                            format_duration(seconds), out_.string()));
    return kSuccess;
}

}  // namespace

int run_train(const TrainOptions& options, const RankStart& start) {
    return TrainJob(options, start).run();
}

}  // namespace quadrille
