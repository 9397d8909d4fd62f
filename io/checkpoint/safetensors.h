// SPDX-License-Identifier: Apache-2.0
// Read access to a checkpoint folder: model.safetensors, or model.safetensors.index.json and its
// shards. Headers are parsed and checked at once (sizes, offsets, overlaps, truncation). Data is
// read when asked for: by read, or through Tensor::bytes, a map for jobs that look at few tensors.
// A map cannot name what goes wrong with a file and its pages compete with weights for unified
// memory, so whatever a model is loaded with is read.
#pragma once

#include "kernels/dtype.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

class SafetensorsFile;

struct Tensor {
    std::string name;
    Dtype dtype = Dtype::f32;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes{};  // valid while the Checkpoint lives
    size_t file = 0;                     // index into Checkpoint::files()

    int64_t elements() const;
    // True: it has no bytes; whoever places it makes values (made_model.h).
    bool made() const { return bytes.empty() && elements() > 0; }
    std::string describe() const;  // "BF16 [256, 512]", for messages
};

// The place of a tensor's bytes: in files()[file] from `begin` on, or for a checkpoint without
// files at an address.
struct TensorPlace {
    size_t file = 0;
    int64_t begin = 0;
};

// The first of `count` values at `data` that is infinite or NaN; -1: there is none. BF16, F16 or
// F32, at any address.
int64_t find_non_finite(const std::byte* data, Dtype dtype, int64_t count);

class Checkpoint {
  public:
    // Told of each file before it is opened: a file system that hangs does so then.
    using Opening = std::function<void(const std::filesystem::path&)>;

    // Throws Error{input} naming file, tensor, expected and found; Error{io} where reading fails.
    explicit Checkpoint(const std::filesystem::path& folder, const Opening& opening = {});
    // Only these files of the folder, as tensors of one checkpoint.
    Checkpoint(const std::filesystem::path& folder, const std::vector<std::string>& files);
    // Without files: tensors of different names whose bytes, where they have any, lie in `data`.
    Checkpoint(const std::string& title, std::vector<Tensor> tensors,
               std::vector<std::vector<std::byte>> data);
    ~Checkpoint();
    Checkpoint(Checkpoint&&) noexcept;
    Checkpoint& operator=(Checkpoint&&) noexcept;

    const Tensor* find(const std::string& name) const;  // nullptr: absent
    // A tensor that must be there; `expected` describes it for the message. Error{input}.
    const Tensor& get(const std::string& name, const std::string& expected) const;
    // Throws Error{input} naming folder, tensor, expected and found.
    [[noreturn]] void refuse(const Tensor& tensor, const std::string& expected) const;
    // Elements first, first + 1, …: Error{input} naming folder, tensor and element where one of
    // `count` is infinite or NaN.
    void check_finite(const Tensor& tensor, int64_t first, int64_t count) const;
    // Throws Error{input} naming folder, tensor and element.
    [[noreturn]] void refuse_non_finite(const Tensor& tensor, int64_t element) const;
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const std::vector<std::filesystem::path>& files() const { return files_; }
    const std::filesystem::path& folder() const { return folder_; }
    TensorPlace place(const Tensor& tensor) const;
    // Fills `out` from a place on, by read(2), whatever short reads a file system gives. Error{io}
    // naming the file and the byte where it fails, or ends sooner than its header says. Any thread.
    void read(const TensorPlace& from, std::span<std::byte> out) const;
    // The bytes of a tensor from `first` on.
    void read(const Tensor& tensor, int64_t first, std::span<std::byte> out) const;
    // The system need not keep these bytes of files()[from.file] in memory.
    void forget(const TensorPlace& from, int64_t bytes) const;
    // Error{io} naming a file that has been written to since its header was read.
    void check_unchanged() const;
    // __metadata__ of files()[file].
    const std::map<std::string, std::string>& metadata(size_t file) const {
        return metadata_.at(file);
    }
    // Hex digest of every header and file size and of the first 4 KiB of each tensor: names a
    // checkpoint in provenance and fingerprints. Not cryptographic; hundreds of GB are not read, so
    // a bit that changes further in is not seen (verify_weights reads everything).
    std::string digest() const;

  private:
    void add_file(const std::filesystem::path& file);

    std::filesystem::path folder_;
    std::vector<std::filesystem::path> files_;
    std::vector<std::map<std::string, std::string>> metadata_;
    std::vector<std::unique_ptr<SafetensorsFile>> opened_;  // of files_
    std::vector<std::vector<std::byte>> data_;              // of no files
    std::map<std::string, Tensor> tensors_;
};

}  // namespace quadrille
