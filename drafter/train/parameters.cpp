// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/parameters.h"

#include "drafter/dflash2/draft_plan.h"
#include "io/checkpoint/exl3_module.h"
#include "io/checkpoint/module_names.h"
#include "io/checkpoint/safetensors_writer.h"
#include "io/files.h"
#include "io/output.h"
#include "kernels/dtype.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace quadrille {

namespace {

bool of_stage_a(const std::string& name) {
    return name.starts_with("fc") || name.starts_with("hidden_norm") ||
           name.starts_with("candidate_selector.");
}

int64_t elements(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
}

void to_floats(float* out, const Tensor& tensor) {
    const int64_t count = tensor.elements();
    const std::byte* from = tensor.bytes.data();
    for (int64_t i = 0; i < count; ++i) {
        if (tensor.dtype == Dtype::f32) {
            std::memcpy(out + i, from + 4 * i, 4);
            continue;
        }
        uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * i, 2);
        out[i] = tensor.dtype == Dtype::bf16 ? to_float(BF16{bits}) : to_float(F16{bits});
    }
}

void read_tensor(float* out, const Checkpoint& checkpoint, const std::string& name,
                 const std::vector<int64_t>& shape) {
    const std::string expected = fmt::format("BF16, F16 or F32 [{}]", fmt::join(shape, ", "));
    const Tensor& tensor = checkpoint.get(name, expected);
    const bool floating =
        tensor.dtype == Dtype::bf16 || tensor.dtype == Dtype::f16 || tensor.dtype == Dtype::f32;
    if (!floating || tensor.shape != shape) checkpoint.refuse(tensor, expected);
    checkpoint.check_finite(tensor, 0, tensor.elements());
    to_floats(out, tensor);
}

}  // namespace

Parameters::Parameters(const DraftConfig& config) {
    if (config.conv_kernel_size == 0 || config.selector_rank == 0) {
        throw Error(
            ErrorKind::input,
            "train: expected a DFlash2 drafter, found one without convolutions or selector");
    }
    std::vector<DraftModule> modules = draft_modules(config);
    std::ranges::stable_partition(modules, [](const DraftModule& m) { return of_stage_a(m.name); });
    for (const DraftModule& module : modules) {
        const TensorPart part = module.matrix ? TensorPart::weight : TensorPart::bare;
        all_.push_back(
            {tensor_name(module.name, part), module.shape, count_, elements(module.shape)});
        count_ += (all_.back().count + kAlign - 1) / kAlign * kAlign;
        if (of_stage_a(module.name)) stage_a_ = count_;
    }
}

const Parameter& Parameters::get(const std::string& name) const {
    const auto found = std::ranges::find(all_, name, &Parameter::name);
    require(found != all_.end(), "a parameter of the drafter");
    return *found;
}

std::vector<float> read_matrix(const Checkpoint& checkpoint, const std::string& module, int64_t n,
                               int64_t k) {
    const StoredAs form = stored_as(checkpoint, module);
    if (form == StoredAs::exl3 || form == StoredAs::exl3_split) {
        return read_exl3(find_exl3_module(checkpoint, module, n, k),
                         MatrixSlice::of_rows({{0, n}}, k))
            .decode();
    }
    std::vector<float> values(static_cast<size_t>(n * k));
    read_tensor(values.data(), checkpoint, tensor_name(module, TensorPart::weight), {n, k});
    return values;
}

std::vector<float> read_parameters(const Parameters& parameters, const Checkpoint& checkpoint) {
    std::vector<float> values(static_cast<size_t>(parameters.count()));
    for (const Parameter& p : parameters.all()) {
        const TensorName parsed = parse_tensor_name(p.name);
        if (parsed.part == TensorPart::weight && checkpoint.find(p.name) == nullptr) {
            std::ranges::copy(read_matrix(checkpoint, parsed.module, p.shape[0], p.shape[1]),
                              values.begin() + p.offset);
            continue;
        }
        read_tensor(values.data() + p.offset, checkpoint, p.name, p.shape);
    }
    return values;
}

void write_drafter(const std::filesystem::path& folder, const Parameters& parameters,
                   std::span<const float> values, const std::filesystem::path& config_json) {
    std::vector<std::vector<BF16>> rounded;
    std::vector<NewTensor> tensors;
    rounded.reserve(parameters.all().size());
    for (const Parameter& p : parameters.all()) {
        std::vector<BF16>& bits = rounded.emplace_back(static_cast<size_t>(p.count));
        std::ranges::transform(values.subspan(static_cast<size_t>(p.offset), bits.size()),
                               bits.begin(), to_bf16);
        tensors.push_back({p.name, Dtype::bf16, p.shape, std::as_bytes(std::span(bits))});
    }
    create_folder(folder);
    std::ifstream in(config_json, std::ios::binary);
    const std::string config{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in) throw Error(ErrorKind::io, fmt::format("cannot read {}", config_json.string()));
    replace_file(folder / "config.json", config);
    write_safetensors(folder / "model.safetensors", std::move(tensors), {});
}

}  // namespace quadrille
