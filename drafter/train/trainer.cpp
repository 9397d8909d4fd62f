// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/trainer.h"

#include "kernels/error.h"
#include "kernels/make_train_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quadrille {
namespace {

constexpr int64_t kReduceRows = 16384;  // of Parameters::kAlign values, summed over ranks at once

// Losses and counts of a report, for the wire.
std::vector<double> packed(const LossReport& r, size_t per) {
    std::vector<double> out = {r.block_ce,
                               r.kl,
                               r.selector,
                               r.anchor,
                               r.hidden,
                               r.total,
                               static_cast<double>(r.blocks),
                               static_cast<double>(r.slots)};
    for (const auto* list : r.counts()) {
        for (size_t i = 0; i < per; ++i) {
            out.push_back(i < list->size() ? static_cast<double>((*list)[i]) : 0.0);
        }
    }
    return out;
}

LossReport unpacked(const double* in, size_t per) {
    LossReport r;
    r.block_ce = in[0];
    r.kl = in[1];
    r.selector = in[2];
    r.anchor = in[3];
    r.hidden = in[4];
    r.total = in[5];
    r.blocks = std::llround(in[6]);
    r.slots = std::llround(in[7]);
    in += 8;
    for (auto* list : r.counts()) {
        for (size_t i = 0; i < per; ++i) list->push_back(std::llround(*in++));
    }
    return r;
}

LossReport sum_of(const std::vector<LossReport>& reports) {
    LossReport all;
    for (const LossReport& report : reports) all.add(report);
    return all;
}

}  // namespace

Trainer::Trainer(Backend& backend, Communicator& comm, const DraftConfig& config,
                 const Parameters& parameters, const TrainLimits& limits,
                 const TrainerOptions& options)
    : backend_(backend),
      comm_(comm),
      config_(config),
      parameters_(parameters),
      options_(options),
      trained_(parameters.trained(options.stage)),
      ops_(make_train_ops(backend)),
      tree_(backend, comm, kReduceRows, Parameters::kAlign) {
    const int64_t h = config.hidden_size;
    const int64_t rows = limits.blocks * config.block_size;
    const int64_t slots = limits.blocks * (config.block_size - 1);
    options_.best = std::min(options.best, config.vocab_size);
    embedding_ = {backend, config.vocab_size, h};
    head_ = {backend, config.vocab_size, h};
    weights_ = {backend, 1, parameters.count()};
    first_ = {backend, 1, trained_};
    second_ = {backend, 1, trained_};
    if (options.loss.reading == AnchorLoss::drafter) {
        frozen_ = {backend, 1, parameters.count()};
        kept_ = {backend, rows, h};
    }
    int64_t parts = options.parts / comm.size();
    gradients_.emplace_back(backend, 1, trained_);
    for (; parts > 1; parts = (parts + 1) / 2) gradients_.emplace_back(backend, 1, trained_);
    taps_ = {backend, limits.context, std::ssize(config.target_layer_ids) * h};
    teacher_hidden_ = {backend, slots, h};
    teacher_logits_ = {backend, slots, options_.best};
    teacher_ids_ = {backend, slots, options_.best};
    context_positions_ = {backend, 1, limits.context};
    block_positions_ = {backend, 1, rows};
    block_tokens_ = {backend, 1, rows};
    anchors_ = {backend, 1, limits.blocks};
    model_.emplace(backend, *ops_, config_, parameters_, embedding_.view(), limits);
    loss_.emplace(backend, *ops_, config_, parameters_, head_.view(), limits.blocks);
}

void Trainer::load(std::span<const float> start, std::span<const float> embedding,
                   std::span<const float> head) {
    weights_.upload(start);
    embedding_.upload(embedding);
    head_.upload(head);
    if (frozen_.rows() > 0) frozen_.upload(start);
    std::ranges::fill(first(), 0.0F);
    std::ranges::fill(second(), 0.0F);
}

LossReport Trainer::run(const TrainBatch& batch, float* gradient) {
    const int64_t rows = batch.blocks() * config_.block_size;
    const int64_t slots = batch.blocks() * (config_.block_size - 1);
    if (slots == 0) return {};
    taps_.upload(batch.taps);
    teacher_hidden_.upload(batch.hidden);
    context_positions_.upload(batch.context_positions);
    block_positions_.upload(batch.block_positions);
    block_tokens_.upload(batch.block_tokens);
    anchors_.upload(batch.anchors);
    const TrainPass<float> pass{.taps = taps_.first(batch.context()),
                                .context_positions = context_positions_.data(),
                                .block_positions = block_positions_.data(),
                                .block_tokens = block_tokens_.data(),
                                .plan = {config_.block_size, batch.sequences, anchors_.data()},
                                .blocks = batch.blocks()};
    const SlotTeacher<float> teacher{teacher_hidden_.first(slots),
                                     {teacher_logits_.first(slots), teacher_ids_.first(slots)}};
    loss_->best_of(teacher_logits_.first(slots), teacher_ids_.first(slots), teacher.hidden);
    View<const float> reference;
    if (frozen_.rows() > 0) {
        const View<const float> found = model_->forward(frozen_.data(), pass);
        std::copy_n(found.data, found.rows * found.cols, kept_.data());
        reference = kept_.first(rows);
    }
    const View<const float> hidden = model_->forward(weights_.data(), pass);
    LossReport report = loss_->run(options_.loss, weights_.data(), gradient, hidden, reference,
                                   batch.labels, teacher);
    if (gradient != nullptr) {
        model_->backward(weights_.data(), gradient, options_.stage, pass, loss_->dhidden());
    }
    return report;
}

void Trainer::sum_parts(int64_t begin, int64_t end, size_t level,
                        const std::function<void(int64_t, float*)>& part) {
    Array<float>& into = gradients_[level];
    if (end - begin == 1) {
        std::fill_n(into.data(), trained_, 0.0F);
        part(begin, into.data());
        return;
    }
    const int64_t middle = begin + (end - begin) / 2;
    sum_parts(begin, middle, level, part);
    sum_parts(middle, end, level + 1, part);
    ops_->add(into.view(), gradients_[level + 1].view());
}

void Trainer::reduce() {
    if (comm_.size() == 1) return;
    const int64_t rows = trained_ / Parameters::kAlign;
    for (int64_t first = 0; first < rows; first += kReduceRows) {
        const View<float> slice(gradients_[0].data() + first * Parameters::kAlign,
                                std::min(kReduceRows, rows - first), Parameters::kAlign);
        tree_.sum(slice, slice);
    }
}

// Reports of all ranks' parts, in the order of the parts; each rank has `all` / ranks or fewer.
std::vector<LossReport> Trainer::gather(const std::vector<LossReport>& own, int64_t all) {
    const auto per = static_cast<size_t>(config_.block_size - 1);
    const size_t width = 8 + LossReport().counts().size() * per;
    const auto ranks = static_cast<size_t>(comm_.size());
    const size_t each = (static_cast<size_t>(all) + ranks - 1) / ranks;
    std::vector<double> sent, found(each * width * ranks);
    for (const LossReport& report : own) {
        const std::vector<double> values = packed(report, per);
        sent.insert(sent.end(), values.begin(), values.end());
    }
    sent.resize(each * width);
    comm_.all_gather_host(found.data(), sent.data(), std::ssize(sent) * int64_t{sizeof(double)});
    std::vector<LossReport> reports;
    for (size_t i = 0; i < static_cast<size_t>(all); ++i) {
        reports.push_back(unpacked(found.data() + i * width, per));
    }
    return reports;
}

StepResult Trainer::step(int64_t step, double rate,
                         const std::function<TrainBatch(int64_t)>& draw) {
    const int64_t each = options_.parts / comm_.size();
    std::vector<LossReport> own;
    sum_parts(comm_.rank() * each, (comm_.rank() + 1) * each, 0,
              [&](int64_t part, float* gradient) {
                  own.push_back(run(draw((step - 1) * options_.parts + part), gradient));
              });
    reduce();
    const double share = 1.0 / static_cast<double>(options_.parts);
    StepResult result{.report = sum_of(gather(own, options_.parts)), .norm = 0};
    result.norm = share * std::sqrt(ops_->sum_squares(gradients_[0].data(), trained_));
    if (!std::isfinite(result.norm)) {
        throw Error(
            ErrorKind::input,
            fmt::format("step {}: the gradient is {}: a lower --rate may help", step, result.norm));
    }
    const double clipped = result.norm > options_.clip ? options_.clip / result.norm : 1.0;
    const auto number = static_cast<double>(step);
    ops_->adamw(weights_.data(), gradients_[0].data(), first_.data(), second_.data(), trained_,
                {.rate = static_cast<float>(rate),
                 .beta1 = static_cast<float>(options_.beta1),
                 .beta2 = static_cast<float>(options_.beta2),
                 .epsilon = static_cast<float>(options_.epsilon),
                 .decay = static_cast<float>(options_.decay),
                 .correction1 = static_cast<float>(1 - std::pow(options_.beta1, number)),
                 .correction2 = static_cast<float>(1 - std::pow(options_.beta2, number)),
                 .scale = static_cast<float>(share * clipped)});
    return result;
}

LossReport Trainer::measure(int64_t count, const std::function<TrainBatch(int64_t)>& draw) {
    const int64_t each = (count + comm_.size() - 1) / comm_.size();
    std::vector<LossReport> own;
    const int64_t end = std::min((comm_.rank() + 1) * each, count);
    for (int64_t i = comm_.rank() * each; i < end; ++i) own.push_back(run(draw(i), nullptr));
    return sum_of(gather(own, count));
}

}  // namespace quadrille
