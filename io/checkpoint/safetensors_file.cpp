// SPDX-License-Identifier: Apache-2.0
// The safetensors container: 8 bytes of header length (little-endian), a JSON object
// {name: {dtype, shape, data_offsets}, "__metadata__": {…}}, then the data, which the format
// requires to be covered by the tensors without hole or overlap.
#include "io/checkpoint/safetensors_file.h"

#include "io/text/json.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>

namespace quadrille {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's reference reader

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

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : handle_(path, O_RDONLY), opened_(status()) {
    if (!S_ISREG(opened_.st_mode)) {
        throw Error(ErrorKind::input, fmt::format("{}: not a regular file", path.string()));
    }
    const auto size = static_cast<size_t>(opened_.st_size);
    if (size < kLengthBytes) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: expected at least {} bytes (header length), found {}",
                                path.string(), kLengthBytes, size));
    }
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle_.get(), 0);
    if (address == MAP_FAILED) {
        throw Error(ErrorKind::io, fmt::format("{}: cannot map {} bytes: {}", path.string(), size,
                                               system_reason(errno)));
    }
    bytes_ = {static_cast<const std::byte*>(address), size};
}

SafetensorsFile::~SafetensorsFile() {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

struct stat SafetensorsFile::status() const {
    struct stat status {};
    if (fstat(handle_.get(), &status) != 0) {
        throw Error(ErrorKind::io,
                    fmt::format("{}: {}", handle_.path().string(), system_reason(errno)));
    }
    return status;
}

void SafetensorsFile::read(int64_t at, std::span<std::byte> out) const {
    const size_t count = handle_.read(at, {reinterpret_cast<char*>(out.data()), out.size()});
    if (count == out.size()) return;
    throw Error(
        ErrorKind::io,
        fmt::format("{}: expected {} bytes, as when it was opened, found its end at {}: it "
                    "shrank while it was read",
                    handle_.path().string(), bytes_.size(), at + static_cast<int64_t>(count)));
}

void SafetensorsFile::forget(int64_t at, int64_t bytes) const {
    static_cast<void>(posix_fadvise(handle_.get(), at, bytes, POSIX_FADV_DONTNEED));
}

void SafetensorsFile::check_unchanged() const {
    const struct stat now = status();
    const auto same_time = [](const timespec& a, const timespec& b) {
        return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    if (now.st_size == opened_.st_size && same_time(now.st_mtim, opened_.st_mtim)) return;
    throw Error(ErrorKind::io,
                fmt::format("{}: somebody wrote to it while it was read ({} bytes when it was "
                            "opened, {} now)",
                            handle_.path().string(), opened_.st_size, now.st_size));
}

std::string SafetensorsFile::header() const {
    uint64_t length = 0;
    read(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > kMaxHeader) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: header: expected at most {} bytes, found a length of {}",
                                handle_.path().string(), kMaxHeader, length));
    }
    if (length > bytes_.size() - kLengthBytes) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: header: expected {} bytes, found {} in the file (truncated?)",
                                handle_.path().string(), length, bytes_.size() - kLengthBytes));
    }
    std::string text(length, '\0');
    read(kLengthBytes, std::as_writable_bytes(std::span(text)));
    return text;
}

std::vector<Tensor> SafetensorsFile::read_tensors(
    std::map<std::string, std::string>& metadata) const {
    const fs::path& file = handle_.path();
    const std::string text = header();
    const auto data = bytes_.subspan(kLengthBytes + text.size());
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

}  // namespace quadrille
