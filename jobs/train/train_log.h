// SPDX-License-Identifier: Apache-2.0
// train.tsv: a line for each step and each validation.
#pragma once

#include "drafter/train/trainer.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace quadrille {

class TrainLog {
  public:
    // Goes on behind step `step` of the file that is there; 0: begins anew.
    TrainLog(std::filesystem::path path, int64_t step);
    void add(int64_t step, const char* what, double rate, const StepResult& result);
    // On the disk, whole.
    void save() const;

  private:
    std::filesystem::path path_;
    std::string text_;
};

// Share of supervised slots whose draft is right behind the true token.
double teacher_forced(const LossReport& report);

}  // namespace quadrille
