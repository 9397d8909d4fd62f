// SPDX-License-Identifier: Apache-2.0
#include "tests/support/draft_case.h"

#include "tests/support/golden.h"

#include <string>

namespace quadrille::test {

namespace {

DraftConfig altered(const DraftSetup& setup) {
    DraftConfig config = read_draft_config(setup.folder);
    if (setup.alter) setup.alter(config);
    return config;
}

}  // namespace

std::filesystem::path trained_drafter() {
    return data_path("models") / "demo-dflash2";
}

std::vector<int64_t> trained_taps() {
    return read_draft_config(trained_drafter()).target_layer_ids;
}

DraftCase::DraftCase(ModelCase& target, const DraftSetup& setup)
    : config_(altered(setup)),
      checkpoint_(setup.folder),
      drafter_(std::make_unique<DFlash2>(target.backend(), target.comm(), position_, config_,
                                         checkpoint_, target.model(), setup.options)) {}

std::unique_ptr<TempFolder> copy_drafter(const std::function<bool(StoredTensor&)>& edit,
                                         const std::vector<StoredTensor>& more) {
    auto folder = std::make_unique<TempFolder>();
    std::filesystem::copy_file(trained_drafter() / "config.json", *folder / "config.json");
    const Checkpoint original(trained_drafter());
    std::vector<StoredTensor> tensors = more;
    for (const auto& [name, tensor] : original.tensors()) {
        std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
        const std::string described = tensor.describe();
        StoredTensor stored{name, described.substr(0, described.find(' ')), tensor.shape,
                            std::move(bytes)};
        if (edit(stored)) tensors.push_back(std::move(stored));
    }
    folder->write("model.safetensors", safetensors_file(tensors));
    return folder;
}

}  // namespace quadrille::test
