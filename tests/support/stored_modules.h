// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a few made tensors: EXL3 matrices as a pack stores them, whole or in parts.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "kernels/exl3.h"
#include "kernels/matrix.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

#include <string>
#include <vector>

namespace quadrille::test {

template <class T>
std::string bytes_of(const T* values, int64_t count) {
    return {reinterpret_cast<const char*>(values), static_cast<size_t>(count) * sizeof(T)};
}

// A tensor of zeros.
inline StoredTensor zeros(const std::string& name, const std::string& dtype,
                          const std::vector<int64_t>& shape) {
    int64_t bytes = dtype == "F32" || dtype == "I32" ? 4 : dtype.starts_with("F8") ? 1 : 2;
    for (const int64_t extent : shape) bytes *= extent;
    return {name, dtype, shape, std::string(static_cast<size_t>(bytes), '\0')};
}

inline StoredTensor marker(const std::string& owner, Codebook codebook) {
    const uint32_t value = codebook == Codebook::mcg ? exl3::kMcgMultiplier : exl3::kMul1Multiplier;
    return {owner + '.' + name(codebook), "I32", {}, bytes_of(&value, 1)};
}

// trellis, suh and svh of `module`, and the marker of a codebook that has one.
inline std::vector<StoredTensor> exl3_tensors(const std::string& module, const Matrix& m) {
    const int64_t words = m.k_padded * m.n_padded / 16 * m.bits;
    std::vector<StoredTensor> tensors = {
        {module + ".trellis",
         "I16",
         {m.k_padded / 16, m.n_padded / 16, int64_t{16} * m.bits},
         bytes_of(m.trellis, words)},
        {module + ".suh", "F16", {m.k_padded}, bytes_of(m.suh, m.k_padded)},
        {module + ".svh", "F16", {m.n_padded}, bytes_of(m.svh, m.n_padded)}};
    if (m.codebook != Codebook::three_inst) tensors.push_back(marker(module, m.codebook));
    return tensors;
}

// A checkpoint in a folder of its own.
class StoredModules {
  public:
    explicit StoredModules(const std::vector<StoredTensor>& tensors)
        : checkpoint_(folder_.write("model.safetensors", safetensors_file(tensors)).parent_path()) {
    }

    const Checkpoint& checkpoint() const { return checkpoint_; }

  private:
    TempFolder folder_;
    Checkpoint checkpoint_;
};

}  // namespace quadrille::test
