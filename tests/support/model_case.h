// SPDX-License-Identifier: Apache-2.0
// A target ready to run inside a test: checkpoint, backend and model of one pack on the ranks of a
// communicator, with shortcuts for whole logits and greedy runs.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "runtime/engine.h"
#include "runtime/model/target_model.h"
#include "runtime/ranks/comm.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille::test {

// tests/data/models/NAME or $QUADRILLE_TEST_MODELS/NAME; nullopt: neither is there.
std::optional<std::filesystem::path> find_model(const std::string& name);

// make_backend; ranks share the visible GPUs in turn.
std::unique_ptr<Backend> make_backend_of(const std::string& name, const Communicator& comm);

class ModelCase {
  public:
    ModelCase(const std::filesystem::path& folder, Communicator& comm, const ModelLimits& limits,
              std::vector<int64_t> taps = {}, const std::string& backend = "cpu");
    // On a backend of the test's own.
    ModelCase(const std::filesystem::path& folder, Communicator& comm, const ModelLimits& limits,
              std::vector<int64_t> taps, std::unique_ptr<Backend> backend);

    Backend& backend() { return *backend_; }
    TargetModel& model() { return *model_; }
    const ModelConfig& config() const { return config_; }
    Communicator& comm() { return *comm_; }

    // One pass; rows of `logits` (count, vocab) of all ranks joined.
    std::vector<float> forward(StepBatch& batch);
    std::vector<float> join_logits(View<const float> part);
    // Contiguous rows in the backend's memory.
    std::vector<float> download(View<const float> rows);
    // Reads `tokens` into `slot` in chunks of `chunk`; whole logits of the last token.
    std::vector<float> prefill(int32_t slot, std::span<const int32_t> tokens, int32_t chunk);

    EngineOptions engine_options(int32_t k = 0) const;
    // Runs prompts to the end and returns the generations in prompt order.
    std::vector<Generation> run(std::vector<Prompt> prompts, const EngineOptions& options,
                                Drafter* drafter = nullptr);

  private:
    Position position_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> staged_;  // where `comm` cannot reach the backend's memory
    Communicator* comm_;
    ModelConfig config_;
    Checkpoint checkpoint_;
    std::unique_ptr<TargetModel> model_;
};

// Prompts of tests/data/demo_golden.h5 with `max_new_tokens` each.
std::vector<Prompt> golden_prompts(int64_t max_new_tokens);

// The largest |a - b|, NaN where there is one; of the same size or the test fails.
double largest_difference(std::span<const float> a, std::span<const float> b);

// A checkpoint's name as that of a test.
std::string pack_name(const testing::TestParamInfo<std::string>& info);

}  // namespace quadrille::test
