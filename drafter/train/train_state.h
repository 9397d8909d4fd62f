// SPDX-License-Identifier: Apache-2.0
// The state of a training run in a file: what a run that was ended goes on from, to the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace quadrille {

// Values of a Trainer.
struct TrainValues {
    std::span<float> weights, first, second;
};

// FOLDER/train.state.safetensors: whole or as it was before. `run` names the run. Error{io}.
void save_state(const std::filesystem::path& folder, const std::string& run, int64_t step,
                const TrainValues& values);
// The step that was saved, 0: none. Error{input}: the state of another run, or a damaged file.
int64_t load_state(const std::filesystem::path& folder, const std::string& run,
                   const TrainValues& values);
bool has_state(const std::filesystem::path& folder);
void remove_state(const std::filesystem::path& folder);

}  // namespace quadrille
