// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/safetensors_writer.h"

#include "io/digest.h"
#include "io/files.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fcntl.h>
#include <string_view>

namespace quadrille {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSeal = "quadrille_seal";
constexpr size_t kAtOnce = size_t{64} << 20;  // bytes of a write
constexpr size_t kAlignment = 8;

bool before(const NewTensor& a, const NewTensor& b) {
    // Wide elements first: every tensor lies on a multiple of its element then.
    const int64_t width_a = size_of(a.dtype);
    const int64_t width_b = size_of(b.dtype);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
}

void check(const std::vector<NewTensor>& tensors) {
    for (const NewTensor& tensor : tensors) {
        int64_t bytes = size_of(tensor.dtype);
        for (const int64_t extent : tensor.shape) bytes *= extent;
        require(bytes == std::ssize(tensor.bytes), "a tensor's bytes fill its shape");
    }
    std::vector<std::string_view> names;
    for (const NewTensor& tensor : tensors) names.push_back(tensor.name);
    std::ranges::sort(names);
    require(std::ranges::adjacent_find(names) == names.end(), "every tensor of a file once");
}

// The data of tensors in their order in the file.
template <class Tensors>
std::string seal_of(const Tensors& tensors) {
    Digest digest;
    for (const auto& tensor : tensors) digest.add(tensor.bytes);
    return digest.hex();
}

std::string header_of(const std::vector<NewTensor>& tensors, const Metadata& metadata) {
    nlohmann::json header;
    header["__metadata__"] = metadata;
    header["__metadata__"]["format"] = "pt";
    header["__metadata__"][kSeal] = seal_of(tensors);
    size_t at = 0;
    for (const NewTensor& tensor : tensors) {
        header[tensor.name] = {{"dtype", name(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {at, at + tensor.bytes.size()}}};
        at += tensor.bytes.size();
    }
    std::string text = header.dump();
    text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
    return text;
}

}  // namespace

NewTensor as_stored(const Tensor& tensor) {
    return {
        .name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.bytes};
}

void write_safetensors(const fs::path& path, std::vector<NewTensor> tensors,
                       const Metadata& metadata) {
    std::ranges::sort(tensors, before);
    check(tensors);
    const std::string header = header_of(tensors, metadata);
    const fs::path unfinished = path.string() + ".tmp";
    FileHandle file(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
    std::string length(kAlignment, '\0');
    for (size_t i = 0; i < kAlignment; ++i) {
        length[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xffu);
    }
    file.write(0, length);
    file.write(std::ssize(length), header);
    int64_t at = std::ssize(length) + std::ssize(header);
    for (const NewTensor& tensor : tensors) {
        for (size_t done = 0; done < tensor.bytes.size(); done += kAtOnce) {
            const auto part =
                tensor.bytes.subspan(done, std::min(kAtOnce, tensor.bytes.size() - done));
            file.write(at, {reinterpret_cast<const char*>(part.data()), part.size()});
            at += std::ssize(part);
        }
    }
    file.close();
    sync_file(unfinished);
    rename_durably(unfinished, path);
}

bool is_sealed(const Checkpoint& checkpoint, size_t file) {
    return checkpoint.metadata(file).contains(kSeal);
}

bool seal_holds(const Checkpoint& checkpoint, size_t file) {
    const Metadata& metadata = checkpoint.metadata(file);
    const auto seal = metadata.find(kSeal);
    if (seal == metadata.end()) return false;
    std::vector<Tensor> tensors;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        if (tensor.file == file) tensors.push_back(tensor);
    }
    // Tensors without data share an address; they add the same to the seal in any order.
    std::ranges::sort(tensors, [](const Tensor& a, const Tensor& b) {
        return std::pair(a.bytes.data(), a.bytes.size()) <
               std::pair(b.bytes.data(), b.bytes.size());
    });
    return seal->second == seal_of(tensors);
}

void write_safetensors_index(const fs::path& folder, const Checkpoint& checkpoint) {
    int64_t bytes = 0;
    nlohmann::json index;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        index["weight_map"][name] = checkpoint.files()[tensor.file].filename().string();
        bytes += std::ssize(tensor.bytes);
    }
    index["metadata"]["total_size"] = bytes;
    write_durably(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace quadrille
