// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/probe.h"

#include "drafter/train/train_data.h"
#include "io/capture/capture_reader.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "jobs/common/model_session.h"
#include "jobs/common/table.h"
#include "jobs/options/option_checks.h"
#include "jobs/probe/draft_reading.h"
#include "jobs/probe/next_token.h"
#include "jobs/probe/probe_report.h"
#include "jobs/probe/tap_map.h"
#include "kernels/dtype.h"
#include "kernels/make_train_ops.h"
#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kRows = 256;  // through the head at once

class ProbeJob {
  public:
    ProbeJob(const ProbeOptions& options, const RankStart& start)
        : options_(options), session_(options, start) {}
    int run();

  private:
    void start_up();
    void check_groups() const;
    void open_capture();
    void open_reference();
    void split();
    void check_outputs();
    bool looked_at(int64_t sequence) const {
        return options_.limit == 0 || sequence < options_.limit;
    }
    std::vector<int64_t> fitted_sequences() const;
    std::vector<int64_t> held_back() const;
    MapOptions map_options();
    void look();
    void look_at(int64_t sequence, int64_t first, int64_t count);
    void look_through_map();
    void count_mapped(Agreement& agreement, const std::vector<int64_t>& sequences,
                      const std::vector<float>& map);
    void measure_drafter();
    int report();

    const ProbeOptions& options_;
    mutable ModelSession session_;
    std::optional<CaptureReader> reader_, reference_;
    std::vector<int64_t> layers_;
    bool greedy_ = false;
    std::optional<DraftReading> drafter_;
    std::optional<TrainData> data_;  // absent: too few sequences to hold some back
    std::optional<NextToken> head_;
    std::filesystem::path json_;
    ProbeReport report_;  // agreement: tapped layers, the final hidden row, maps
};

int ProbeJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] {
        look();
        look_through_map();
        measure_drafter();
        return report();
    });
}

void ProbeJob::start_up() {
    agree(session_.world(), "groups", [&] { check_groups(); });
    session_.choose_backend();
    session_.read_checkpoint(0);
    agree(session_.world(), "capture", [&] {
        if (session_.leads_run()) try_files({options_.capture});
        if (session_.leads_run() && !options_.reference.empty()) try_files({options_.reference});
    });
    agree(session_.world(), "drafter", [&] {
        if (options_.drafter != "none") drafter_.emplace(session_, options_.drafter);
    });
    agree(session_.world(), "capture of all ranks", [&] { open_capture(); });
    agree(session_.world(), "reference", [&] { open_reference(); });
    agree(session_.world(), "sequences held back", [&] { split(); });
    agree(session_.world(), "outputs", [&] {
        if (session_.leads_run()) check_outputs();
    });
    session_.load(model_limits(1, kRows, kRows, 0), session_.models().config().vocab_size,
                  session_.model_comm());
    head_.emplace(session_, kRows);
    agree(session_.world(), "drafter's weights", [&] {
        if (drafter_ && session_.leads_run()) drafter_->load(*data_);
    });
}

void ProbeJob::check_groups() const {
    if (session_.group_count() == 1) return;
    throw Error(ErrorKind::usage,
                fmt::format("--tp {}: {} ranks would form {} groups; probe is "
                            "the work of one",
                            options_.tp, session_.world().size(), session_.group_count()));
}

void ProbeJob::open_capture() {
    const ModelConfig& config = session_.models().config();
    {
        const h5::Group group = h5::File::open(options_.capture).group("capture");
        const auto layers = group.attribute("layers");
        const auto greedy = group.attribute("greedy");
        if (!layers || !std::holds_alternative<std::vector<int64_t>>(*layers)) {
            throw Error(ErrorKind::input, fmt::format("{}: expected an attribute layers with a "
                                                      "list of layers",
                                                      group.where()));
        }
        layers_ = std::get<std::vector<int64_t>>(*layers);
        greedy_ = greedy && *greedy == h5::Value(int64_t{1});
    }
    reader_.emplace(
        options_.capture,
        CaptureWanted{.tap_layers = drafter_ ? drafter_->config().target_layer_ids : layers_,
                      .hidden = config.hidden_size,
                      .vocab = config.vocab_size,
                      .checkpoint_digest = session_.models().checkpoint().digest()});
    report_.capture = options_.capture;
    for (const int64_t layer : layers_) {
        report_.agreement.push_back(
            {.rows = fmt::format("tap of layer {}, final norm, head", layer)});
    }
    report_.agreement.push_back({.rows = "final hidden, head"});
}

// The target that the drafter was made for, on the same prompts.
void ProbeJob::open_reference() {
    if (options_.reference.empty()) return;
    const ModelConfig& config = session_.models().config();
    reference_.emplace(options_.reference, CaptureWanted{.tap_layers = layers_,
                                                         .hidden = config.hidden_size,
                                                         .vocab = config.vocab_size,
                                                         .checkpoint_digest = ""});
    if (reference_->checkpoint_digest() == reader_->checkpoint_digest()) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected a capture of another checkpoint than that of {}",
                                options_.reference, options_.capture));
    }
    if (reference_->sequences() == reader_->sequences()) return;
    throw Error(ErrorKind::input,
                fmt::format("{}: expected the {} sequences of {}, found {}", options_.reference,
                            reader_->sequences(), options_.capture, reference_->sequences()));
}

// As train does: what it held back is held back here.
void ProbeJob::split() {
    DataOptions data;
    data.sequences = 1;
    data.length = kMaxTokens;
    data.validation = options_.validation;
    data.seed = options_.seed;
    if (drafter_) {
        data_.emplace(*reader_, drafter_->config(), data);
        return;
    }
    DraftConfig config;
    config.block_size = 2;
    config.hidden_size = session_.models().config().hidden_size;
    config.target_layer_ids = layers_;
    try {
        data_.emplace(*reader_, config, data);
    } catch (const Error& error) {
        session_.log().notice(fmt::format("no ridge map: {}", error.what()));
    }
}

void ProbeJob::check_outputs() {
    namespace fs = std::filesystem;
    std::vector<fs::path> taken = {options_.capture};
    if (!options_.reference.empty()) taken.emplace_back(options_.reference);
    if (!options_.json.empty()) {
        const auto objection = [](const fs::path& path) {
            return not_json(path, "a report of probe, which is replaced", {"capture", "agreement"});
        };
        json_ = output_path(
            options_.json,
            {.option = "--json", .overwrite = true, .taken = taken, .objection = objection});
    }
    const fs::path out = options_.refit_fc;
    if (out.empty() || !fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out))) return;
    throw Error(ErrorKind::usage,
                fmt::format("--refit-fc {}: expected a new or an empty folder", out.string()));
}

std::vector<int64_t> ProbeJob::fitted_sequences() const {
    std::vector<int64_t> sequences;
    std::ranges::copy_if(data_->training_sequences(), std::back_inserter(sequences),
                         [&](int64_t s) { return looked_at(s); });
    std::ranges::sort(sequences);
    return sequences;
}

std::vector<int64_t> ProbeJob::held_back() const {
    std::vector<int64_t> sequences;
    std::ranges::copy_if(data_->held_back(), std::back_inserter(sequences),
                         [&](int64_t s) { return looked_at(s); });
    return sequences;
}

MapOptions ProbeJob::map_options() {
    return {.damping = options_.damping,
            .threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency())),
            .progress = [this](int64_t done, int64_t all) {
                session_.position().enter(done, "ridge map");
                session_.log().progress({.done = done, .total = all, .tokens = 0});
            }};
}

void ProbeJob::look() {
    const int64_t all = reader_->sequences();
    const int64_t last = options_.limit > 0 ? std::min(options_.limit, all) : all;
    for (int64_t sequence = 0; sequence < last; ++sequence) {
        session_.position().enter(sequence, "probe");
        // The last token has none behind it.
        const int64_t rows = reader_->length(sequence) - 1;
        for (int64_t first = 0; first < rows; first += kRows) {
            look_at(sequence, first, std::min(kRows, rows - first));
        }
        session_.log().progress({.done = sequence + 1, .total = last, .tokens = report_.tokens});
    }
    session_.log().finish({.done = last, .total = last, .tokens = report_.tokens});
    for (Agreement& agreement : report_.agreement) agreement.tokens = report_.tokens;
}

void ProbeJob::look_at(int64_t sequence, int64_t first, int64_t count) {
    const int32_t* next = reader_->tokens_of(sequence) + first + 1;
    const uint8_t* mask = reader_->mask_of(sequence) + first + 1;
    const int64_t generated = std::count_if(mask, mask + count, [](uint8_t m) { return m != 0; });
    if (generated == 0) return;
    report_.tokens += generated;
    const CaptureRows rows = reader_->read(sequence, first, count);
    const auto hidden = static_cast<size_t>(session_.models().config().hidden_size);
    const size_t columns = hidden * layers_.size();
    std::vector<float> tap(static_cast<size_t>(count) * hidden);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        for (size_t i = 0; i < tap.size(); ++i) {
            tap[i] = to_float(BF16{rows.taps[i / hidden * columns + layer * hidden + i % hidden]});
        }
        report_.agreement[layer].right += head_->right(tap, false, next, mask);
    }
    report_.agreement[layers_.size()].right += head_->right(rows.final_hidden, true, next, mask);
}

void ProbeJob::look_through_map() {
    if (!data_) return;
    const std::vector<int64_t> fitted = fitted_sequences();
    const std::vector<int64_t> kept = held_back();
    if (fitted.empty() || kept.empty()) return;
    std::vector<float> map(static_cast<size_t>(reader_->hidden() * reader_->tap_columns()));
    if (session_.leads()) map = fit_next_token(*reader_, fitted, map_options());
    session_.group().broadcast_host(map.data(), std::ssize(map) * int64_t{sizeof(float)}, 0);
    report_.agreement.push_back({.rows = "ridge map of all taps, head, fitted on"});
    count_mapped(report_.agreement.back(), fitted, map);
    report_.agreement.push_back({.rows = "ridge map of all taps, head, held back"});
    count_mapped(report_.agreement.back(), kept, map);
}

void ProbeJob::count_mapped(Agreement& agreement, const std::vector<int64_t>& sequences,
                            const std::vector<float>& map) {
    const auto backend = make_backend("cpu");
    const auto ops = make_train_ops(*backend);
    const View<const float> weights(map.data(), reader_->hidden(), reader_->tap_columns());
    for (const int64_t sequence : sequences) {
        session_.position().enter(sequence, "ridge map");
        const int64_t rows = reader_->length(sequence) - 1;
        for (int64_t first = 0; first < rows; first += kRows) {
            const int64_t count = std::min(kRows, rows - first);
            const uint8_t* mask = reader_->mask_of(sequence) + first + 1;
            const auto generated = count - std::count(mask, mask + count, uint8_t{0});
            if (generated == 0) continue;
            agreement.tokens += generated;
            const std::vector<float> taps = taps_of(reader_->read(sequence, first, count));
            std::vector<float> mapped(static_cast<size_t>(count * weights.rows));
            ops->product({mapped.data(), count, weights.rows}, {taps.data(), count, weights.cols},
                         weights, ProductForm::nt, false);
            agreement.right +=
                head_->right(mapped, true, reader_->tokens_of(sequence) + first + 1, mask);
        }
    }
}

void ProbeJob::measure_drafter() {
    if (!drafter_ || !session_.leads_run()) return;
    report_.drafter = options_.drafter;
    report_.steps_per_second = options_.steps_per_second;
    report_.held_back = held_back();
    report_.draft = drafter_->measure(report_.held_back);
    if (!reference_) return;
    drafter_->set_fc(
        refit_fc(*reader_, *reference_, fitted_sequences(), drafter_->fc(), map_options()));
    report_.refitted = drafter_->measure(report_.held_back);
    drafter_->write(options_.refit_fc);
}

int ProbeJob::report() {
    if (!session_.leads_run()) return kSuccess;
    std::string text = report_.text();
    if (reference_) text += fmt::format("written to {}\n", options_.refit_fc);
    show(stdout, text);
    if (!json_.empty()) replace_file(json_, report_.json());
    const Agreement& whole = report_.agreement[layers_.size()];
    if (!greedy_ || whole.right == whole.tokens) return kSuccess;
    throw Error(ErrorKind::input,
                fmt::format("{}: expected final hidden rows that give every token of a greedy "
                            "capture, found {} of {}",
                            options_.capture, whole.right, whole.tokens));
}

}  // namespace

int run_probe(const ProbeOptions& options, const RankStart& start) {
    return ProbeJob(options, start).run();
}

}  // namespace quadrille
