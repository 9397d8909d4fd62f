// SPDX-License-Identifier: Apache-2.0
// The tensors of a drafter as one flat array of values: those that stage A trains come first, so
// that the trained part is a prefix in either stage. Each begins at a multiple of kAlign values;
// what lies between is zero and stays zero.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// a: fc, hidden_norm and the selector; b: everything.
enum class TrainStage : uint8_t { a, b };

struct Parameter {
    std::string name;  // of the tensor in a checkpoint
    std::vector<int64_t> shape;
    int64_t offset = 0;
    int64_t count = 0;

    int64_t cols() const { return shape.back(); }
    int64_t rows() const { return count / shape.back(); }
};

class Parameters {
  public:
    static constexpr int64_t kAlign = 64;

    // Error{input}: a drafter without convolutions or selector, which is no DFlash2.
    explicit Parameters(const DraftConfig& config);

    const std::vector<Parameter>& all() const { return all_; }
    const Parameter& get(const std::string& name) const;
    int64_t count() const { return count_; }  // values of the flat array
    int64_t trained(TrainStage stage) const { return stage == TrainStage::a ? stage_a_ : count_; }

  private:
    std::vector<Parameter> all_;
    int64_t count_ = 0;
    int64_t stage_a_ = 0;
};

// The flat array of a drafter's checkpoint; EXL3 modules are decoded. Error{input}: a tensor of
// another shape or with a value that is infinite or NaN.
std::vector<float> read_parameters(const Parameters& parameters, const Checkpoint& checkpoint);

// A matrix of a checkpoint, decoded: embedding and head of the target. Error{input}.
std::vector<float> read_matrix(const Checkpoint& checkpoint, const std::string& module, int64_t n,
                               int64_t k);

// FOLDER/model.safetensors in bf16, as official drafters have it, and a copy of `config_json`
// beside it. The folder is made; each file takes its name when it is whole. Error{io}.
void write_drafter(const std::filesystem::path& folder, const Parameters& parameters,
                   std::span<const float> values, const std::filesystem::path& config_json);

}  // namespace quadrille
