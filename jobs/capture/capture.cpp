// SPDX-License-Identifier: Apache-2.0
// Generations first, by generate itself; then one group of ranks loads the target with taps and
// forces the conversations through it. Rank 0 writes: rows are the same on all ranks.
#include "jobs/capture/capture.h"

#include "drafter/dflash2/draft_plan.h"
#include "io/capture/capture_reader.h"
#include "io/capture/capture_writer.h"
#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "jobs/capture/conversations.h"
#include "jobs/common/model_session.h"
#include "jobs/common/table.h"
#include "jobs/generate/generate.h"
#include "kernels/dtype.h"
#include "runtime/ranks/agree.h"
#include "runtime/ranks/record_block.h"
#include "runtime/teacher_forcing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {

namespace {

constexpr int64_t kSlots = 16;        // sequences read at once, unasked
constexpr int64_t kBlockPasses = 16;  // of full size, about, between two commits

std::string not_a_capture(const std::filesystem::path& path) {
    std::vector<std::string> notices;
    try {
        const std::string kind = schema::kind_of(h5::File::open(path), notices);
        if (kind == schema::kCapture) return {};
        return fmt::format("holds {}, not a capture", kind);
    } catch (const Error&) {
        return "is not a capture, which alone is replaced";
    }
}

std::filesystem::path check_out(const CaptureOptions& options) {
    try_files({options.out});
    std::vector<std::filesystem::path> taken(options.generate.prompts.begin(),
                                             options.generate.prompts.end());
    taken.emplace_back(options.generations);
    return output_path(options.out, {.overwrite = options.output_exists != OutputExists::fail,
                                     .taken = taken,
                                     .objection = not_a_capture});
}

// What every rank must know and only the leader can find out.
struct CaptureShape {
    int64_t sequences = 0;
    int64_t done = 0;
    int64_t longest = 0;
    int64_t rows = 0;
};

class CaptureJob {
  public:
    CaptureJob(const CaptureOptions& options, const RankStart& start)
        : options_(options),
          models_(options.generate),
          signals_(start.signals),
          session_(without_drafter(models_), start) {}
    int run();

  private:
    static const ModelOptions& without_drafter(ModelOptions& options) {
        options.draft = "none";
        return options;
    }
    void start_up();
    void check_groups() const;
    void find_layers();
    void open_files();
    bool leads() const { return session_.leads_run(); }

    int capture();
    std::vector<Prompt> next_block(int64_t first) const;
    void run_block(TeacherForcing& forcing, const std::vector<Prompt>& block, int64_t first);
    void keep(const ObservedRows& rows, int64_t first);
    void download(View<const float> rows, const char* what, int64_t row);
    void finish();

    const CaptureOptions& options_;
    ModelOptions models_;
    StopSignals& signals_;
    mutable ModelSession session_;
    std::vector<int64_t> layers_;
    Conversations conversations_;  // of the leader
    std::optional<CaptureWriter> writer_;
    CaptureShape shape_;
    std::vector<float> staged_;
    std::vector<uint16_t> bits_;
    std::chrono::steady_clock::time_point begin_;
};

int CaptureJob::run() {
    session_.watch(std::chrono::seconds(options_.generate.watchdog), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] { return capture(); });
}

void CaptureJob::start_up() {
    agree(session_.world(), "groups", [&] { check_groups(); });
    session_.choose_backend();
    session_.read_checkpoint(0);
    agree(session_.world(), "taps", [&] { find_layers(); });
    agree(session_.world(), "files", [&] {
        if (leads()) open_files();
    });
    session_.world().broadcast_host(&shape_, sizeof shape_, 0);
    if (shape_.done == shape_.sequences) return;
    const int64_t asked = options_.generate.max_seqs;
    const int64_t slots = std::min(asked > 0 ? asked : kSlots, shape_.sequences);
    session_.load(model_limits(slots, shape_.longest, models_.max_batched_tokens, 0),
                  session_.models().config().vocab_size, session_.model_comm(), layers_);
}

void CaptureJob::check_groups() const {
    if (session_.group_count() == 1) return;
    throw Error(ErrorKind::usage,
                fmt::format("--tp {}: {} ranks would form {} groups; a capture is made by one "
                            "(--shard divides the prompts among several)",
                            models_.tp, session_.world().size(), session_.group_count()));
}

void CaptureJob::find_layers() {
    const ModelConfig& config = session_.models().config();
    layers_ = options_.taps;
    if (layers_.empty()) {
        const DraftConfig draft = read_draft_config(options_.generate.draft);
        check_draft_config(draft, config, 0);
        layers_ = draft.target_layer_ids;
    }
    if (layers_.back() >= config.num_layers) {
        throw Error(ErrorKind::usage, fmt::format("--taps: expected layers 0 to {}, found {}",
                                                  config.num_layers - 1, layers_.back()));
    }
}

void CaptureJob::open_files() {
    const std::filesystem::path out = check_out(options_);
    const ModelConfig& config = session_.models().config();
    conversations_ = read_conversations(options_.generate, config);
    const CaptureText& text = conversations_.text;
    shape_ = {
        .sequences = text.sequences(), .longest = conversations_.longest, .rows = text.rows()};
    if (options_.output_exists == OutputExists::skip && std::filesystem::exists(out)) {
        const CaptureReader there(out,
                                  {.tap_layers = layers_,
                                   .hidden = config.hidden_size,
                                   .vocab = config.vocab_size,
                                   .checkpoint_digest = session_.models().checkpoint().digest()});
        if (there.tokens() != text.rows() || there.sequences() != text.sequences() ||
            !std::equal(text.tokens.begin(), text.tokens.end(), there.tokens_of(0))) {
            throw Error(ErrorKind::usage,
                        fmt::format("{}: a capture of other conversations", out.string()));
        }
        shape_.done = shape_.sequences;
        return;
    }
    const CaptureLayout layout{.layers = layers_,
                               .hidden_size = config.hidden_size,
                               .vocab_size = config.vocab_size,
                               .greedy = conversations_.greedy,
                               .identity = conversations_.identity};
    writer_.emplace(out, layout, text, options_.output_exists == OutputExists::overwrite);
    shape_.done = writer_->done();
    session_.log().notice(
        fmt::format("capture of {} sequences, {} tokens, {} bytes a token: {}{}", shape_.sequences,
                    shape_.rows, layout.row_bytes(), format_bytes(shape_.rows * layout.row_bytes()),
                    shape_.done > 0 ? fmt::format("; going on behind {}", shape_.done) : ""));
    if (conversations_.left_out > 0) {
        session_.log().notice(
            fmt::format("{} records with an error or without a token are left "
                        "out",
                        conversations_.left_out));
    }
}

int CaptureJob::capture() {
    begin_ = std::chrono::steady_clock::now();
    if (shape_.done < shape_.sequences) {
        const ModelLimits& limits = session_.models().target().limits();
        TeacherForcing forcing(session_.backend(), session_.position(), session_.models().target(),
                               {.max_batched_tokens = prefill_rows(limits), .logits = false});
        signals_.heed();
        for (int64_t at = shape_.done; at < shape_.sequences;) {
            const std::vector<Prompt> block = broadcast_records(
                session_.group(), 0, leads() ? next_block(at) : std::vector<Prompt>());
            run_block(forcing, block, at);
            at += std::ssize(block);
            if (at < shape_.sequences && signals_.agreed(session_.world()) != Stop::none) {
                session_.log().notice(
                    fmt::format("stopped with {} of {} sequences done; the same "
                                "command goes on",
                                at, shape_.sequences));
                return kResumable;
            }
        }
    }
    if (leads() && writer_) finish();
    return kSuccess;
}

std::vector<Prompt> CaptureJob::next_block(int64_t first) const {
    const CaptureText& text = conversations_.text;
    const int64_t most = kBlockPasses * session_.models().target().limits().max_rows;
    std::vector<Prompt> block;
    int64_t rows = 0;
    for (int64_t i = first; i < text.sequences() && (block.empty() || rows < most); ++i) {
        const auto begin = text.offsets[static_cast<size_t>(i)];
        const auto end = text.offsets[static_cast<size_t>(i) + 1];
        Prompt prompt;
        prompt.index = i;
        prompt.tokens.assign(text.tokens.begin() + begin, text.tokens.begin() + end);
        block.push_back(std::move(prompt));
        rows += end - begin;
    }
    return block;
}

void CaptureJob::run_block(TeacherForcing& forcing, const std::vector<Prompt>& block,
                           int64_t first) {
    std::vector<TeacherForcing::Tokens> sequences;
    for (const Prompt& prompt : block) sequences.emplace_back(prompt.tokens);
    forcing.run(sequences, [&](const ObservedRows& rows) {
        if (leads()) keep(rows, first);
    });
    if (!leads()) return;
    const int64_t done = first + std::ssize(block);
    session_.position().aside("write the capture");
    writer_->commit(done);
    session_.log().progress({.done = done,
                             .total = shape_.sequences,
                             .tokens = conversations_.text.offsets[static_cast<size_t>(done)]});
}

void CaptureJob::keep(const ObservedRows& rows, int64_t first) {
    const auto sequence = static_cast<size_t>(first + rows.sequence);
    const int64_t row = conversations_.text.offsets[sequence] + rows.position;
    download(rows.taps, "taps", row);
    bits_.resize(staged_.size());
    std::ranges::transform(staged_, bits_.begin(), [](float x) { return to_bf16(x).bits; });
    download(rows.hidden, "final hidden", row);
    writer_->write(row, bits_, staged_);
}

// To staged_.
void CaptureJob::download(View<const float> rows, const char* what, int64_t row) {
    require(rows.stride == rows.cols, "observed rows without gaps");
    staged_.resize(static_cast<size_t>(rows.rows * rows.cols));
    session_.backend().download(staged_.data(), rows.data,
                                std::ssize(staged_) * int64_t{sizeof(float)});
    const auto bad = std::ranges::find_if(staged_, [](float x) { return !std::isfinite(x); });
    if (bad == staged_.end()) return;
    const int64_t at = bad - staged_.begin();
    throw Error(ErrorKind::input,
                fmt::format("{} of token {}: element {} is {}; nothing can be learned from it",
                            what, row + at / rows.cols, at % rows.cols, *bad));
}

void CaptureJob::finish() {
    session_.position().aside("seal the capture");
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const int64_t before = conversations_.text.offsets[static_cast<size_t>(shape_.done)];
    session_.log().finish(
        {.done = shape_.sequences, .total = shape_.sequences, .tokens = shape_.rows});
    writer_->finish();
    int64_t generated = 0;
    for (const uint8_t mask : conversations_.text.loss_mask) generated += mask;
    Table table("lr");
    table.row({"sequences", fmt::format("{}", shape_.sequences)})
        .row({"tokens", fmt::format("{}", shape_.rows)})
        .row({"of them generated", fmt::format("{}", generated)})
        .row({"tokens/s", format_rate(static_cast<double>(shape_.rows - before) / seconds)});
    show(stdout, table.text() + fmt::format("written to {}\n", options_.out));
}

}  // namespace

namespace {

// Before anything is generated, which may take long.
int generate_then_capture(const CaptureOptions& options, const RankStart& start) {
    agree(start.session.world(), "capture file", [&] {
        if (start.session.rank() == 0) check_out(options);
    });
    const int code = run_generate(options.generate, start);
    if (code != kSuccess) return code;
    return CaptureJob(options, start).run();
}

}  // namespace

int run_capture(const CaptureOptions& options, const RankStart& start) {
    return generate_then_capture(options, start);
}

int run_generate_saving(const GenerateOptions& options, const RankStart& start) {
    if (options.save_hidden.empty() || options.dry_run) return run_generate(options, start);
    return generate_then_capture({.generate = options,
                                  .generations = options.out,
                                  .out = options.save_hidden,
                                  .taps = {},
                                  .output_exists = options.output_exists},
                                 start);
}

}  // namespace quadrille
