// SPDX-License-Identifier: Apache-2.0
// Loads tensors of a checkpoint into backend memory, sliced for one rank. A module is dispatched on
// the suffixes present (`weight`; `trellis` + `suh`/`svh` or legacy `su`/`sv`; a per-rank split
// `rank{r}.trellis`), never on the config. Every shape and dtype is checked; errors name tensor,
// expected and found. Formats: kernels/exl3.h and docs/design.md §7.
#pragma once

#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/matrix.h"
#include "runtime/model/shard.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

// The part of an (n, k) matrix to load. Row ranges are concatenated in order (fused q | k | v).
struct MatrixSlice {
    std::vector<Range> rows;  // outputs
    Range cols;               // inputs
    int32_t segments = 1;     // as Matrix::segments, relative to cols.begin
    std::array<int64_t, kSegments + 1> segment{};
};

class WeightLoader {
  public:
    WeightLoader(Backend& backend, const Checkpoint& checkpoint);

    bool has_module(const std::string& module) const;  // any known suffix

    // Whole or sliced (n, k) matrix of `module`. `bare`: the tensor is named `module` itself.
    Matrix matrix(const std::string& module, int64_t n, int64_t k);
    Matrix matrix(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    // The same where the op needs native weights: an EXL3 module is dequantised to f32.
    Matrix native_matrix(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    // Row-parallel slice: all outputs, inputs `share`.
    Matrix row_parallel(const std::string& module, int64_t n, int64_t k,
                        const SegmentedRange& share);
    // Column-parallel slice: outputs `rows`, all inputs.
    Matrix column_parallel(const std::string& module, int64_t n, int64_t k, Range rows);

    // `count` values of any float dtype as f32, optionally only `ranges` of them concatenated;
    // the tensor's shape may have extra dimensions of 1.
    const float* vector(const std::string& tensor, int64_t count);
    const float* vector(const std::string& tensor, int64_t count, const std::vector<Range>& ranges);
    // A tensor of any float dtype and exactly this shape, as f32.
    const float* tensor(const std::string& tensor, const std::vector<int64_t>& shape);
    // `ranges` of several (count, width) tensors, one after the other.
    const float* joined(const std::vector<std::string>& tensors, int64_t count, int64_t width,
                        const std::vector<Range>& ranges);

    // A table in backend memory that lives as long as the loader's other weights.
    const Mlp* table(const std::vector<Mlp>& entries);

    int64_t bytes() const { return bytes_; }
    // Tensors nothing asked for, in name order.
    std::vector<std::string> unused() const;

  private:
    struct Exl3Parts;
    const Tensor& need(const std::string& name, const char* purpose);
    const Tensor* find(const std::string& name);
    void* reserve(int64_t bytes);
    void* store(const void* host, int64_t bytes);
    Matrix load_native(const Tensor& tensor, int64_t n, int64_t k, const MatrixSlice& slice);
    Matrix load_exl3(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    Matrix load_presplit(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    Exl3Parts exl3_parts(const std::string& module, int64_t n, int64_t k);
    Matrix slice_exl3(const std::string& module, const Exl3Parts& parts, const MatrixSlice& slice);
    std::vector<F16> scales(const std::string& module, const char* suffix, const char* legacy,
                            int64_t count);

    Backend& backend_;
    const Checkpoint& checkpoint_;
    std::vector<Buffer> blocks_;
    int64_t block_used_ = 0;
    int64_t bytes_ = 0;
    std::set<std::string> used_;
};

}  // namespace quadrille
