// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/probe.h"

#include "io/capture/capture_reader.h"
#include "io/h5/trial.h"
#include "jobs/common/model_session.h"
#include "jobs/common/table.h"
#include "kernels/buffer.h"
#include "kernels/dtype.h"
#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kRows = 256;  // through the head at once

// What a rank found best in its part of the vocabulary.
struct Best {
    float value = 0;
    int32_t id = -1;
};

class ProbeJob {
  public:
    ProbeJob(const ProbeOptions& options, const RankStart& start)
        : options_(options), session_(options, start) {}
    int run();

  private:
    void start_up();
    void check_groups() const;
    void open_capture();
    void look();
    void look_at(int64_t sequence, int64_t first, int64_t count);
    // Agreement of rows (rows, hidden) with the tokens behind them.
    void count(size_t reading, const std::vector<float>& rows, bool normed, const int32_t* next,
               const uint8_t* mask);
    std::vector<int32_t> most_likely(int64_t rows);
    int report();

    const ProbeOptions& options_;
    mutable ModelSession session_;
    std::optional<CaptureReader> reader_;
    std::vector<int64_t> layers_;
    bool greedy_ = false;
    Array<float> rows_, logits_, values_;
    Array<int32_t> ids_;
    std::vector<int64_t> agree_;  // tapped layers, then the final hidden row
    int64_t tokens_ = 0;
};

int ProbeJob::run() {
    session_.watch(std::chrono::seconds(0), {});
    session_.start_up([this] { start_up(); });
    return session_.guard([this] {
        look();
        return report();
    });
}

void ProbeJob::start_up() {
    agree(session_.world(), "groups", [&] { check_groups(); });
    session_.choose_backend();
    session_.read_checkpoint(0);
    agree(session_.world(), "capture", [&] {
        if (session_.leads_run()) try_files({options_.capture});
    });
    agree(session_.world(), "capture of all ranks", [&] { open_capture(); });
    session_.load(model_limits(1, kRows, kRows, 0), session_.models().config().vocab_size,
                  session_.model_comm());
    Backend& backend = session_.backend();
    const TargetModel& target = session_.models().target();
    rows_ = {backend, kRows, target.config().hidden_size};
    logits_ = {backend, kRows, target.plan().vocab.size()};
    values_ = {backend, 1, kRows};
    ids_ = {backend, 1, kRows};
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
    reader_.emplace(options_.capture,
                    CaptureWanted{.tap_layers = layers_,
                                  .hidden = config.hidden_size,
                                  .vocab = config.vocab_size,
                                  .checkpoint_digest = session_.models().checkpoint().digest()});
    agree_.assign(layers_.size() + 1, 0);
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
        session_.log().progress({.done = sequence + 1, .total = last, .tokens = tokens_});
    }
    session_.log().finish({.done = last, .total = last, .tokens = tokens_});
}

void ProbeJob::look_at(int64_t sequence, int64_t first, int64_t count) {
    const int32_t* next = reader_->tokens_of(sequence) + first + 1;
    const uint8_t* mask = reader_->mask_of(sequence) + first + 1;
    const int64_t generated = std::count_if(mask, mask + count, [](uint8_t m) { return m != 0; });
    if (generated == 0) return;
    tokens_ += generated;
    const CaptureRows rows = reader_->read(sequence, first, count);
    const auto hidden = static_cast<size_t>(session_.models().config().hidden_size);
    const size_t columns = hidden * layers_.size();
    std::vector<float> tap(static_cast<size_t>(count) * hidden);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        for (size_t i = 0; i < tap.size(); ++i) {
            tap[i] = to_float(BF16{rows.taps[i / hidden * columns + layer * hidden + i % hidden]});
        }
        this->count(layer, tap, false, next, mask);
    }
    this->count(layers_.size(), rows.final_hidden, true, next, mask);
}

void ProbeJob::count(size_t reading, const std::vector<float>& rows, bool normed,
                     const int32_t* next, const uint8_t* mask) {
    Backend& backend = session_.backend();
    const TargetModel& target = session_.models().target();
    const int64_t m = std::ssize(rows) / target.config().hidden_size;
    const View<float> in = rows_.first(m);
    backend.upload(in.data, rows.data(), std::ssize(rows) * int64_t{sizeof(float)});
    if (!normed) target.norm_final(in);
    backend.linear(logits_.first(m), in, target.head());
    const std::vector<int32_t> found = most_likely(m);
    for (int64_t i = 0; i < m; ++i) {
        if (mask[i] != 0 && found[static_cast<size_t>(i)] == next[i]) ++agree_[reading];
    }
}

// Over all ranks: the largest logit, ties to the lowest id, as greedy decoding chooses.
std::vector<int32_t> ProbeJob::most_likely(int64_t rows) {
    Backend& backend = session_.backend();
    const Range vocab = session_.models().target().plan().vocab;
    backend.argmax(values_.data(), ids_.data(), logits_.first(rows),
                   static_cast<int32_t>(vocab.begin), static_cast<int32_t>(vocab.size()));
    const auto m = static_cast<size_t>(rows);
    std::vector<float> values(m);
    std::vector<int32_t> ids(m);
    backend.download(values.data(), values_.data(), rows * int64_t{sizeof(float)});
    backend.download(ids.data(), ids_.data(), rows * int64_t{sizeof(int32_t)});
    std::vector<Best> own(m);
    for (size_t i = 0; i < m; ++i) own[i] = {values[i], ids[i]};
    const auto ranks = static_cast<size_t>(session_.group().size());
    std::vector<Best> all(m * ranks);
    session_.group().all_gather_host(all.data(), own.data(), rows * int64_t{sizeof(Best)});
    for (size_t rank = 0; rank < ranks; ++rank) {
        for (size_t i = 0; i < m; ++i) {
            const Best& other = all[rank * m + i];
            if (rank == 0 || other.value > own[i].value) own[i] = other;
        }
    }
    for (size_t i = 0; i < m; ++i) ids[i] = own[i].id;
    return ids;
}

int ProbeJob::report() {
    if (!session_.leads_run()) return kSuccess;
    const auto share = [&](int64_t part) {
        return tokens_ == 0 ? std::string("-")
                            : fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) /
                                                          static_cast<double>(tokens_));
    };
    Table table("lrr");
    table.row({"row before the token", "top-1", "of them"});
    for (size_t i = 0; i < layers_.size(); ++i) {
        table.row({fmt::format("tap of layer {}, final norm, head", layers_[i]),
                   fmt::format("{}", agree_[i]), share(agree_[i])});
    }
    table.row({"final hidden, head", fmt::format("{}", agree_.back()), share(agree_.back())});
    show(stdout,
         fmt::format("{}: {} generated tokens\n", options_.capture, tokens_) + table.text());
    if (!greedy_ || agree_.back() == tokens_) return kSuccess;
    throw Error(ErrorKind::input,
                fmt::format("{}: expected final hidden rows that give every token of a greedy "
                            "capture, found {} of {}",
                            options_.capture, agree_.back(), tokens_));
}

}  // namespace

int run_probe(const ProbeOptions& options, const RankStart& start) {
    return ProbeJob(options, start).run();
}

}  // namespace quadrille
