// SPDX-License-Identifier: Apache-2.0
// Reference: the checkpoint that --against names. It reads the texts before the target is loaded,
// so that two models need the memory of one: its final hidden rows wait in a file without a name,
// and its head stays.
#pragma once

#include "jobs/common/model_session.h"
#include "runtime/model/weights.h"
#include "runtime/sampling/row_scores.h"
#include "runtime/teacher_forcing.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// How far the target's distribution is from the reference's in one row.
struct RowDistance {
    double divergence = 0.0;  // KL(reference || target), natural log
    bool same_best = false;   // both have the same most likely token
};

class Reference {
  public:
    // Reads what `folder` holds. Error{input} where its vocabulary is not `vocab_size`.
    Reference(ModelSession& session, const std::string& folder, int64_t vocab_size);
    ~Reference();

    const Checkpoint& checkpoint() const { return models_->checkpoint(); }

    // These in their order. Loads the model.
    void load(const ModelLimits& limits);
    // Reads sequences; rows count on from those of the call before. Error{io} for the file.
    void read(std::span<const TeacherForcing::Tokens> sequences);
    // Lets go of all but the head.
    void end_reading();

    // Rows first, first + 1, … of those read, next to the target's logits (rows, part) of the same
    // tokens; `target`: their scores. Valid until the next call. Collective.
    std::span<const RowDistance> distances(int64_t first, View<const float> logits,
                                           std::span<const RowScore> target);

  private:
    ModelSession& session_;
    std::optional<JobModels> models_;
    std::optional<TeacherForcing> forcing_;
    int file_ = -1;  // (rows, hidden) fp32
    int64_t hidden_;
    int32_t max_rows_ = 0;
    int64_t written_ = 0;  // rows
    Range part_;
    std::unique_ptr<WeightLoader> loader_;
    Matrix head_;
    Array<float> rows_, logits_;
    std::optional<RowScores> scores_;
    std::vector<float> host_, theirs_;
    std::vector<int64_t> sums_, all_sums_;
    std::vector<RowDistance> distances_;
};

}  // namespace quadrille
