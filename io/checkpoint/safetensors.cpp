// SPDX-License-Identifier: Apache-2.0
// The safetensors container: 8 bytes of header length (little-endian), a JSON object
// {name: {dtype, shape, data_offsets}, "__metadata__": {…}}, then the data, which the format
// requires to be covered by the tensors without hole or overlap.
#include "io/checkpoint/safetensors.h"

#include "io/digest.h"
#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace quadrille {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's reference reader
constexpr int64_t kMaxIndex = 1 << 28;
constexpr size_t kDigestBytes = 4096;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::optional<Dtype> dtype_named(const std::string& text) {
    constexpr Dtype kAll[] = {Dtype::f32, Dtype::f16,     Dtype::bf16,    Dtype::f64,
                              Dtype::i8,  Dtype::u8,      Dtype::i16,     Dtype::i32,
                              Dtype::i64, Dtype::boolean, Dtype::f8_e4m3, Dtype::f8_e5m2};
    for (const Dtype dtype : kAll) {
        if (text == name(dtype)) return dtype;
    }
    return std::nullopt;
}

[[noreturn]] void bad_tensor(const fs::path& file, const std::string& tensor,
                             const std::string& problem) {
    throw Error(ErrorKind::input, fmt::format("{}: tensor {}: {}", file.string(), tensor, problem));
}

// Bytes of a shape; nothing when the product does not fit.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& shape, Dtype dtype) {
    int64_t bytes = size_of(dtype);
    // A zero anywhere makes the tensor empty, however large the other extents are.
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    for (const int64_t extent : shape) {
        if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
    }
    return bytes;
}

// One entry of the header, checked against the `size` bytes of `data`.
Tensor read_entry(const fs::path& file, const std::string& tensor, const json& entry,
                  std::span<const std::byte> data) {
    const JsonObject object(entry, file.string(), "tensor " + tensor);
    Tensor result;
    result.name = tensor;
    const std::string dtype = object.string("dtype");
    const auto known = dtype_named(dtype);
    if (!known) object.fail("dtype", "a supported element type (F32, F16, BF16, I16, I32, …)");
    result.dtype = *known;
    result.shape = object.integers("shape", 0, INT64_MAX);
    const auto expected = bytes_of(result.shape, result.dtype);
    if (!expected) object.fail("shape", "a size that fits 63 bits");
    const auto size = static_cast<int64_t>(data.size());
    const auto offsets = object.integers("data_offsets", 0, INT64_MAX);
    if (offsets.size() != 2) object.fail("data_offsets", "two offsets");
    if (offsets[0] > offsets[1]) object.fail("data_offsets", "begin <= end");
    if (offsets[1] > size) {
        object.fail("data_offsets", fmt::format("an end within the file's {} data bytes", size));
    }
    if (offsets[1] - offsets[0] != *expected) {
        bad_tensor(file, tensor,
                   fmt::format("{}: expected {} bytes, found data_offsets of {} bytes",
                               result.describe(), *expected, offsets[1] - offsets[0]));
    }
    result.bytes =
        data.subspan(static_cast<size_t>(offsets[0]), static_cast<size_t>(offsets[1] - offsets[0]));
    return result;
}

// Tensors must cover `data` exactly, each byte once.
void check_cover(const fs::path& file, std::vector<Tensor>& tensors,
                 std::span<const std::byte> data) {
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
        return std::pair(a.bytes.data(), a.bytes.size()) <
               std::pair(b.bytes.data(), b.bytes.size());
    });
    const std::byte* covered = data.data();
    const Tensor* last = nullptr;
    for (const Tensor& tensor : tensors) {
        const auto gap = tensor.bytes.data() - covered;
        if (gap < 0) {
            bad_tensor(file, tensor.name,
                       fmt::format("its data overlaps tensor {} by {} bytes", last->name, -gap));
        }
        if (gap > 0) {
            bad_tensor(file, tensor.name,
                       fmt::format("expected its data at {}, found it at {} (a hole of {} bytes)",
                                   covered - data.data(), tensor.bytes.data() - data.data(), gap));
        }
        covered = tensor.bytes.data() + tensor.bytes.size();
        last = &tensor;
    }
    const auto left = data.data() + data.size() - covered;
    if (left > 0) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected the tensors to fill the {} data bytes, found {} "
                                "bytes after the last",
                                file.string(), data.size(), left));
    }
}

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

// A file mapped read-only for the life of the object.
struct Checkpoint::Mapping {
    explicit Mapping(const fs::path& file);
    ~Mapping() { munmap(const_cast<std::byte*>(bytes.data()), bytes.size()); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::string_view header(const fs::path& file) const;
    std::vector<Tensor> read_tensors(const fs::path& file,
                                     std::map<std::string, std::string>& metadata) const;

    std::span<const std::byte> bytes;  // the whole file
};

Checkpoint::Mapping::Mapping(const fs::path& file) {
    struct Descriptor {
        int fd;
        ~Descriptor() {
            if (fd >= 0) close(fd);
        }
    };
    const Descriptor handle{open(file.c_str(), O_RDONLY | O_CLOEXEC)};
    if (handle.fd < 0) {
        const ErrorKind kind = errno == ENOENT ? ErrorKind::input : ErrorKind::io;
        throw Error(kind, fmt::format("{}: cannot open: {}", file.string(), std::strerror(errno)));
    }
    struct stat status {};
    if (fstat(handle.fd, &status) != 0) {
        throw Error(ErrorKind::io, fmt::format("{}: {}", file.string(), std::strerror(errno)));
    }
    if (!S_ISREG(status.st_mode)) {
        throw Error(ErrorKind::input, fmt::format("{}: not a regular file", file.string()));
    }
    const auto size = static_cast<size_t>(status.st_size);
    if (size < kLengthBytes) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected at least {} bytes (header length), found {}",
                                file.string(), kLengthBytes, size));
    }
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle.fd, 0);
    if (address == MAP_FAILED) {
        throw Error(ErrorKind::io, fmt::format("{}: cannot map {} bytes: {}", file.string(), size,
                                               std::strerror(errno)));
    }
    bytes = {static_cast<const std::byte*>(address), size};
}

std::string_view Checkpoint::Mapping::header(const fs::path& file) const {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kMaxHeader) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: header: expected at most {} bytes, found a length of {}",
                                file.string(), kMaxHeader, length));
    }
    if (length > bytes.size() - kLengthBytes) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: header: expected {} bytes, found {} in the file (truncated?)",
                                file.string(), length, bytes.size() - kLengthBytes));
    }
    return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length};
}

std::vector<Tensor> Checkpoint::Mapping::read_tensors(
    const fs::path& file, std::map<std::string, std::string>& metadata) const {
    const std::string_view text = header(file);
    const auto data = bytes.subspan(kLengthBytes + text.size());
    const json document = parse_json(text, file.string() + ": header");
    const JsonObject top(document, file.string() + ": header");
    std::vector<Tensor> tensors;
    tensors.reserve(document.size());
    for (const auto& [tensor, entry] : document.items()) {
        if (tensor == "__metadata__") {
            for (const auto& [key, value] :
                 JsonObject(entry, top.place(), tensor).value().items()) {
                if (!value.is_string())
                    JsonObject(entry, top.place(), tensor).fail(key, "a string");
                metadata[key] = value.get<std::string>();
            }
            continue;
        }
        tensors.push_back(read_entry(file, tensor, entry, data));
    }
    check_cover(file, tensors, data);
    return tensors;
}

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
    mappings_.push_back(std::make_unique<Mapping>(file));
    files_.push_back(file);
    metadata_.emplace_back();
    for (Tensor& tensor : mappings_.back()->read_tensors(file, metadata_.back())) {
        tensor.file = files_.size() - 1;
        const auto [at, inserted] = tensors_.try_emplace(tensor.name, std::move(tensor));
        if (!inserted) {
            bad_tensor(file, at->first,
                       fmt::format("also in {}", files_[at->second.file].string()));
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

std::string Checkpoint::digest() const {
    Digest digest;
    for (size_t i = 0; i < files_.size(); ++i) {
        digest.add(mappings_[i]->header(files_[i]));
        digest.add(uint64_t{mappings_[i]->bytes.size()});
    }
    for (const auto& [name, tensor] : tensors_) {
        if (files_.empty()) digest.add(name + tensor.describe());
        digest.add(tensor.bytes.first(std::min(tensor.bytes.size(), kDigestBytes)));
    }
    return digest.hex();
}

}  // namespace quadrille
