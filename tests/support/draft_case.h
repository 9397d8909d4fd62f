// SPDX-License-Identifier: Apache-2.0
// The trained drafter beside a target inside a test, and altered copies of it: another config,
// other tensors.
#pragma once

#include "drafter/dflash2/dflash2.h"
#include "tests/support/model_case.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace quadrille::test {

// tests/data/models/demo-dflash2 and the layers it taps.
std::filesystem::path trained_drafter();
std::vector<int64_t> trained_taps();

struct DraftSetup {
    std::filesystem::path folder = trained_drafter();
    std::function<void(DraftConfig&)> alter = {};
    DraftOptions options = {};
};

// A drafter on `target`, which was built with its taps and outlives it.
class DraftCase {
  public:
    explicit DraftCase(ModelCase& target, const DraftSetup& setup = {});
    DFlash2& operator*() { return *drafter_; }
    DFlash2* operator->() { return drafter_.get(); }

  private:
    DraftConfig config_;
    Checkpoint checkpoint_;
    Position position_;
    std::unique_ptr<DFlash2> drafter_;
};

// A copy of the trained drafter's folder; `edit` changes a tensor or returns false to leave it out,
// `more` are added.
std::unique_ptr<TempFolder> copy_drafter(const std::function<bool(StoredTensor&)>& edit,
                                         const std::vector<StoredTensor>& more = {});

}  // namespace quadrille::test
