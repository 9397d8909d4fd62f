// SPDX-License-Identifier: Apache-2.0
// A drafter in training: values, moments, and steps of AdamW over parts of a batch. Gradients of
// parts are summed as one balanced tree over all parts of a step, so that 1, 2 and 4 ranks give the
// same bits.
#pragma once

#include "drafter/train/draft_loss.h"
#include "drafter/train/train_data.h"
#include "drafter/train/train_model.h"
#include "runtime/ranks/comm.h"
#include "runtime/ranks/tree_reduce.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace quadrille {

struct TrainerOptions {
    TrainStage stage = TrainStage::a;
    LossOptions loss;
    int64_t parts = 4;  // of a step: a multiple of the ranks
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0;
    double clip = 1;     // norm of the gradient
    int64_t best = 256;  // tokens of the teacher
};

struct StepResult {
    LossReport report;
    double norm = 0;  // of the gradient, before it is clipped
};

class Trainer {
  public:
    // What was given outlives this, but for `start`, `embedding` and `head`.
    Trainer(Backend& backend, Communicator& comm, const DraftConfig& config,
            const Parameters& parameters, const TrainLimits& limits, const TrainerOptions& options);
    void load(std::span<const float> start, std::span<const float> embedding,
              std::span<const float> head);

    // Step `step` = 1, 2, … at learning rate `rate`; `draw` makes a part of it. Collective.
    // Error{input}: the gradient is infinite or NaN.
    StepResult step(int64_t step, double rate, const std::function<TrainBatch(int64_t)>& draw);
    // Losses of one batch, on this rank alone.
    LossReport losses(const TrainBatch& batch) { return run(batch, nullptr); }
    // Losses of batches 0 … count - 1. Collective.
    LossReport measure(int64_t count, const std::function<TrainBatch(int64_t)>& draw);

    // weights, first and second moments; only these make up the state.
    std::span<float> weights() const { return {weights_.data(), count(weights_)}; }
    std::span<float> first() { return {first_.data(), count(first_)}; }
    std::span<float> second() { return {second_.data(), count(second_)}; }

  private:
    static size_t count(const Array<float>& array) {
        return static_cast<size_t>(array.rows() * array.cols());
    }
    LossReport run(const TrainBatch& batch, float* gradient);
    // The parts from `begin` to `end` into gradients_[level].
    void sum_parts(int64_t begin, int64_t end, size_t level,
                   const std::function<void(int64_t, float*)>& part);
    void reduce();
    std::vector<LossReport> gather(const std::vector<LossReport>& own, int64_t all);

    Backend& backend_;
    Communicator& comm_;
    DraftConfig config_;
    const Parameters& parameters_;
    TrainerOptions options_;
    int64_t trained_;
    std::unique_ptr<TrainOps<float>> ops_;
    Array<float> embedding_, head_, weights_, frozen_, first_, second_;
    Array<float> taps_, teacher_hidden_, teacher_logits_, kept_;
    Array<int32_t> teacher_ids_, context_positions_, block_positions_, block_tokens_, anchors_;
    std::vector<Array<float>> gradients_;
    TreeReduce tree_;
    std::optional<TrainModel<float>> model_;
    std::optional<DraftLoss<float>> loss_;
};

}  // namespace quadrille
