// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files: whole, durable and under their final name, or not at all. The bytes of
// a file depend on its tensors and metadata alone, in whatever order they are given.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "kernels/dtype.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

struct NewTensor {
    std::string name;
    Dtype dtype = Dtype::f32;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;  // read while the file is written
};

// A tensor of a checkpoint under the same name; valid while the Checkpoint lives.
NewTensor as_stored(const Tensor& tensor);

using Metadata = std::map<std::string, std::string>;

// Writes PATH.tmp, syncs it, gives it the name. `metadata` goes into __metadata__ beside "format"
// and a seal over the data. Error{io}; Error{internal}: a name twice, or bytes that do not fill a
// shape.
void write_safetensors(const std::filesystem::path& path, std::vector<NewTensor> tensors,
                       const Metadata& metadata);

// True: files()[file] carries such a seal.
bool is_sealed(const Checkpoint& checkpoint, size_t file);
// True: files()[file] carries the seal of write_safetensors and its data is as it was written.
bool seal_holds(const Checkpoint& checkpoint, size_t file);

// Writes FOLDER/model.safetensors.index.json, durable: which file of `checkpoint` holds a tensor.
void write_safetensors_index(const std::filesystem::path& folder, const Checkpoint& checkpoint);

}  // namespace quadrille
