// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/safetensors.h"

#include "io/checkpoint/safetensors_file.h"
#include "io/digest.h"
#include "io/files.h"
#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace quadrille {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kMaxIndex = 1 << 28;
constexpr size_t kDigestBytes = 4096;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Shard file -> the tensors the index expects in it.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& file) {
    const json document = read_json(file, kMaxIndex);
    const JsonObject weights = JsonObject(document, file.string()).object("weight_map");
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& [tensor, value] : weights.value().items()) {
        const std::string shard = weights.string(tensor);
        // Only plain names: a shard lies in the folder itself.
        if (shard.empty() || shard == "." || shard == ".." ||
            shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
            weights.fail(tensor, "the name of a file in this folder");
        }
        shards[shard].push_back(tensor);
    }
    if (shards.empty()) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: weight_map: expected tensors, found none", file.string()));
    }
    return shards;
}

// Blocks are looked at without a branch, so that the loop runs at the speed of memory.
template <class Word>
int64_t find_exponent(const std::byte* data, int64_t count, Word exponent) {
    constexpr int64_t kAtOnce = 512;
    const auto is_bad = [&](int64_t i) {
        Word word;
        std::memcpy(&word, data + i * int64_t{sizeof word}, sizeof word);
        return (word & exponent) == exponent;
    };
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
        const int64_t end = std::min(begin + kAtOnce, count);
        Word bad = 0;
        for (int64_t i = begin; i < end; ++i) bad |= static_cast<Word>(is_bad(i));
        if (bad == 0) continue;
        for (int64_t i = begin; i < end; ++i) {
            if (is_bad(i)) return i;
        }
    }
    return -1;
}

}  // namespace

int64_t Tensor::elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) {
        if (extent == 0) return 0;
        count *= extent;  // cannot overflow: its bytes lie in a file
    }
    return count;
}

std::string Tensor::describe() const {
    return fmt::format("{} [{}]", quadrille::name(dtype), fmt::join(shape, ", "));
}

Checkpoint::Checkpoint(const fs::path& folder, const Opening& opening) : folder_(folder) {
    std::error_code code;
    if (!fs::is_directory(folder, code)) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected a checkpoint folder, found {}", folder.string(),
                                fs::exists(folder, code) ? "a file" : "nothing"));
    }
    // An index wins over a single file: it may name that file as one shard of several.
    const fs::path index = folder / kIndex;
    std::map<std::string, std::vector<std::string>> shards;
    if (fs::exists(index, code)) {
        shards = read_index(index);
    } else if (fs::exists(folder / kSingle, code)) {
        shards[kSingle] = {};
    } else {
        throw Error(ErrorKind::input, fmt::format("{}: expected {} or {}, found neither",
                                                  folder.string(), kSingle, kIndex));
    }
    for (const auto& [shard, expected] : shards) {
        const fs::path file = folder / shard;
        if (!fs::exists(file, code)) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: tensor {}: expected in {}, found no such file",
                                    index.string(), expected.front(), shard));
        }
        if (opening) opening(file);
        add_file(file);
        for (const std::string& name : expected) {
            const Tensor* found = find(name);
            if (found && found->file == files_.size() - 1) continue;
            throw Error(ErrorKind::input, fmt::format("{}: tensor {}: expected in {}, not there",
                                                      index.string(), name, shard));
        }
    }
}

Checkpoint::Checkpoint(const fs::path& folder, const std::vector<std::string>& files)
    : folder_(folder) {
    for (const std::string& file : files) add_file(folder / file);
}

void Checkpoint::add_file(const fs::path& file) {
    std::error_code code;
    if (!fs::exists(file, code)) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: cannot open: {}", file.string(), system_reason(ENOENT)));
    }
    opened_.push_back(std::make_unique<SafetensorsFile>(file));
    files_.push_back(file);
    metadata_.emplace_back();
    for (Tensor& tensor : opened_.back()->read_tensors(metadata_.back())) {
        tensor.file = files_.size() - 1;
        const auto [at, inserted] = tensors_.try_emplace(tensor.name, std::move(tensor));
        if (!inserted) {
            throw Error(ErrorKind::input, fmt::format("{}: tensor {}: also in {}", file.string(),
                                                      at->first, files_[at->second.file].string()));
        }
    }
}

Checkpoint::Checkpoint(const std::string& title, std::vector<Tensor> tensors,
                       std::vector<std::vector<std::byte>> data)
    : folder_(title), data_(std::move(data)) {
    for (Tensor& tensor : tensors) {
        const auto [at, inserted] = tensors_.try_emplace(tensor.name, std::move(tensor));
        require(inserted, "tensors of different names");
    }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const Tensor* Checkpoint::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

const Tensor& Checkpoint::get(const std::string& name, const std::string& expected) const {
    if (const Tensor* tensor = find(name)) return *tensor;
    throw Error(ErrorKind::input, fmt::format("{}: tensor {} is missing (expected {})",
                                              folder_.string(), name, expected));
}

void Checkpoint::refuse(const Tensor& tensor, const std::string& expected) const {
    throw Error(ErrorKind::input,
                fmt::format("{}: tensor {}: expected {}, found {}", folder_.string(), tensor.name,
                            expected, tensor.describe()));
}

int64_t find_non_finite(const std::byte* data, Dtype dtype, int64_t count) {
    if (dtype == Dtype::f32) return find_exponent(data, count, uint32_t{0x7f800000});
    require(dtype == Dtype::bf16 || dtype == Dtype::f16, "find_non_finite: a float dtype");
    const auto exponent = static_cast<uint16_t>(dtype == Dtype::bf16 ? 0x7f80 : 0x7c00);
    return find_exponent(data, count, exponent);
}

void Checkpoint::check_finite(const Tensor& tensor, int64_t first, int64_t count) const {
    const std::byte* data = tensor.bytes.data() + first * size_of(tensor.dtype);
    const int64_t at = find_non_finite(data, tensor.dtype, count);
    if (at >= 0) refuse_non_finite(tensor, first + at);
}

void Checkpoint::refuse_non_finite(const Tensor& tensor, int64_t element) const {
    throw Error(ErrorKind::input,
                fmt::format("{}: tensor {}: expected finite values, found infinity or NaN at "
                            "element {} of {}",
                            folder_.string(), tensor.name, element, tensor.describe()));
}

TensorPlace Checkpoint::place(const Tensor& tensor) const {
    if (files_.empty()) return {.begin = reinterpret_cast<intptr_t>(tensor.bytes.data())};
    return {.file = tensor.file,
            .begin = tensor.bytes.data() - opened_.at(tensor.file)->bytes().data()};
}

void Checkpoint::read(const TensorPlace& from, std::span<std::byte> out) const {
    if (!files_.empty()) return opened_.at(from.file)->read(from.begin, out);
    std::memcpy(out.data(), reinterpret_cast<const void*>(from.begin), out.size());
}

void Checkpoint::read(const Tensor& tensor, int64_t first, std::span<std::byte> out) const {
    require(first >= 0 && first + std::ssize(out) <= std::ssize(tensor.bytes),
            "bytes inside their tensor");
    TensorPlace from = place(tensor);
    from.begin += first;
    read(from, out);
}

void Checkpoint::forget(const TensorPlace& from, int64_t bytes) const {
    if (!files_.empty()) opened_.at(from.file)->forget(from.begin, bytes);
}

void Checkpoint::check_unchanged() const {
    for (const auto& file : opened_) file->check_unchanged();
}

std::string Checkpoint::digest() const {
    Digest digest;
    for (const auto& file : opened_) {
        digest.add(file->header());
        digest.add(uint64_t{file->bytes().size()});
    }
    std::array<std::byte, kDigestBytes> first;
    for (const auto& [name, tensor] : tensors_) {
        if (files_.empty()) digest.add(name + tensor.describe());
        const std::span bytes = std::span(first).first(std::min(tensor.bytes.size(), kDigestBytes));
        if (!bytes.empty()) read(tensor, 0, bytes);
        digest.add(bytes);
    }
    return digest.hex();
}

}  // namespace quadrille
