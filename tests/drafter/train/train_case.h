// SPDX-License-Identifier: Apache-2.0
// A drafter in training inside a test: its model and losses over one pass, in float or double.
#pragma once

#include "drafter/train/draft_loss.h"
#include "drafter/train/train_model.h"
#include "kernels/backend.h"
#include "kernels/cpu/train_ops_cpu.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace quadrille::test {

// One pass on the host.
struct HostPass {
    std::vector<TrainSequence> sequences;
    std::vector<float> taps;  // (context rows, taps * hidden)
    std::vector<int32_t> context_positions, block_positions, block_tokens, anchors;
    SlotLabels labels;
    std::vector<float> teacher_hidden, teacher_logits;
    std::vector<int32_t> teacher_ids;
    int64_t best = 0;  // of the teacher

    int64_t context() const { return std::ssize(context_positions); }
    int64_t blocks() const { return std::ssize(anchors); }
};

template <class T>
class TrainCase {
  public:
    TrainCase(const DraftConfig& config, std::span<const float> embedding,
              std::span<const float> head, const HostPass& pass)
        : config_(config),
          parameters_(config),
          backend_(make_backend("cpu")),
          ops_(cpu::make_train_ops<T>()),
          embedding_(place(embedding, config.hidden_size)),
          head_(place(head, config.hidden_size)) {
        set(pass);
        const TrainLimits limits{pass.context(), pass.blocks()};
        model_.emplace(*backend_, *ops_, config_, parameters_, embedding_.view(), limits);
        loss_.emplace(*backend_, *ops_, config_, parameters_, head_.view(), pass.blocks());
    }

    const Parameters& parameters() const { return parameters_; }

    void set(const HostPass& pass) {
        host_ = pass;
        taps_ = place(pass.taps, std::ssize(config_.target_layer_ids) * config_.hidden_size);
        context_positions_ = numbers(pass.context_positions);
        block_positions_ = numbers(pass.block_positions);
        block_tokens_ = numbers(pass.block_tokens);
        anchors_ = numbers(pass.anchors);
        teacher_hidden_ = place(pass.teacher_hidden, config_.hidden_size);
        teacher_logits_ = place(pass.teacher_logits, pass.best);
        teacher_ids_ = Array<int32_t>(*backend_, teacher_logits_.rows(), pass.best);
        teacher_ids_.upload(pass.teacher_ids);
    }

    // Losses; `gradient` (parameters) += where it is not empty. `frozen`: AnchorLoss::drafter.
    LossReport run(const LossOptions& options, const std::vector<T>& weights,
                   std::vector<T>& gradient, const std::vector<T>& frozen = {}) {
        const TrainPass<T> pass{.taps = taps_.view(),
                                .context_positions = context_positions_.data(),
                                .block_positions = block_positions_.data(),
                                .block_tokens = block_tokens_.data(),
                                .plan = {config_.block_size, host_.sequences, anchors_.data()},
                                .blocks = host_.blocks()};
        Array<T> kept;
        if (!frozen.empty()) {
            const View<const T> rows = model_->forward(frozen.data(), pass);
            kept = Array<T>(*backend_, rows.rows, rows.cols);
            std::copy(rows.data, rows.data + rows.rows * rows.cols, kept.data());
        }
        hidden_ = model_->forward(weights.data(), pass);
        T* to = gradient.empty() ? nullptr : gradient.data();
        const LossReport report =
            loss_->run(options, weights.data(), to, hidden_, kept.view(), host_.labels,
                       {teacher_hidden_.view(), {teacher_logits_.view(), teacher_ids_.view()}});
        if (to != nullptr) {
            model_->backward(weights.data(), to, TrainStage::b, pass, loss_->dhidden());
        }
        return report;
    }
    View<const T> hidden() const { return hidden_; }  // of the last run

  private:
    Array<T> place(std::span<const float> values, int64_t cols) {
        Array<T> array(*backend_, std::ssize(values) / cols, cols);
        std::copy(values.begin(), values.end(), array.data());
        return array;
    }
    Array<int32_t> numbers(const std::vector<int32_t>& values) {
        return Array<int32_t>(*backend_, std::span<const int32_t>(values));
    }

    DraftConfig config_;
    Parameters parameters_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<TrainOps<T>> ops_;
    HostPass host_;
    Array<T> embedding_, head_, taps_, teacher_hidden_, teacher_logits_;
    Array<int32_t> context_positions_, block_positions_, block_tokens_, anchors_, teacher_ids_;
    std::optional<TrainModel<T>> model_;
    std::optional<DraftLoss<T>> loss_;
    View<const T> hidden_;
};

}  // namespace quadrille::test
