// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/train_state.h"

#include "io/checkpoint/safetensors.h"
#include "io/checkpoint/safetensors_writer.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>
#include <vector>

namespace quadrille {
namespace {

constexpr const char* kFile = "train.state.safetensors";

std::array<std::pair<const char*, std::span<float>>, 3> named(const TrainValues& values) {
    return {{{"weights", values.weights}, {"first", values.first}, {"second", values.second}}};
}

}  // namespace

void save_state(const std::filesystem::path& folder, const std::string& run, int64_t step,
                const TrainValues& values) {
    std::vector<NewTensor> tensors;
    for (const auto& [name, part] : named(values)) {
        tensors.push_back({name, Dtype::f32, {std::ssize(part)}, std::as_bytes(part)});
    }
    write_safetensors(folder / kFile, std::move(tensors),
                      {{"run", run}, {"step", fmt::format("{}", step)}});
}

int64_t load_state(const std::filesystem::path& folder, const std::string& run,
                   const TrainValues& values) {
    const std::filesystem::path path = folder / kFile;
    if (!std::filesystem::exists(path)) return 0;
    const Checkpoint state(folder, {kFile});
    if (!seal_holds(state, 0)) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: damaged; remove it to begin anew", path.string()));
    }
    const auto& metadata = state.metadata(0);
    const auto found = metadata.find("run");
    const auto step = metadata.find("step");
    int64_t number = 0;
    const auto parse = [&] {
        const char* end = step->second.data() + step->second.size();
        return std::from_chars(step->second.data(), end, number).ptr == end && number > 0;
    };
    if (found == metadata.end() || found->second != run || step == metadata.end() || !parse()) {
        throw Error(
            ErrorKind::input,
            fmt::format("{}: expected the state of run {}, found {}: other data, drafter "
                        "or options; remove it to begin anew",
                        path.string(), run, found == metadata.end() ? "none" : found->second));
    }
    for (const auto& [name, part] : named(values)) {
        const std::string expected = fmt::format("F32 [{}]", part.size());
        const Tensor& tensor = state.get(name, expected);
        if (tensor.dtype != Dtype::f32 || tensor.shape != std::vector<int64_t>{std::ssize(part)}) {
            state.refuse(tensor, expected);
        }
        state.read(tensor, 0, std::as_writable_bytes(part));
    }
    return number;
}

bool has_state(const std::filesystem::path& folder) {
    return std::filesystem::exists(folder / kFile);
}

void remove_state(const std::filesystem::path& folder) {
    std::error_code ignored;
    std::filesystem::remove(folder / kFile, ignored);
}

}  // namespace quadrille
