// SPDX-License-Identifier: Apache-2.0
// One safetensors file, open and mapped read-only for the life of the object, and what its header
// says. Error{input} for what it holds, Error{io} where reading fails; both name the file.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "io/files.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace quadrille {

class SafetensorsFile {
  public:
    explicit SafetensorsFile(const std::filesystem::path& path);
    ~SafetensorsFile();
    SafetensorsFile(const SafetensorsFile&) = delete;
    SafetensorsFile& operator=(const SafetensorsFile&) = delete;

    const std::filesystem::path& path() const { return handle_.path(); }
    std::string header() const;
    // The tensors of the header, Tensor::file left as it is.
    std::vector<Tensor> read_tensors(std::map<std::string, std::string>& metadata) const;
    // These are Checkpoint's of the same names.
    void read(int64_t at, std::span<std::byte> out) const;
    void forget(int64_t at, int64_t bytes) const;
    void check_unchanged() const;
    std::span<const std::byte> bytes() const { return bytes_; }  // the whole file

  private:
    struct stat status() const;

    FileHandle handle_;
    struct stat opened_ {};
    std::span<const std::byte> bytes_;
};

}  // namespace quadrille
