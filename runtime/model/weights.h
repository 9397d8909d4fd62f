// SPDX-License-Identifier: Apache-2.0
// Places tensors of a checkpoint in backend memory, sliced for one rank. How a module is stored is
// told by its tensors' names (io/checkpoint/module_names.h), never by the config. Every shape and
// dtype is checked at once, and memory is taken; `read` then reads everything that was asked for,
// in the order of the files, and checks that it is finite. Errors name tensor, expected and found.
// Slices: docs/design.md §7. Tensors without bytes (Tensor::made) are filled on the backend. Where
// that only counts memory (Device::on_paper) nothing is read.
#pragma once

#include "io/checkpoint/exl3_module.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/matrix.h"
#include "runtime/model/shard.h"
#include "runtime/model/weight_reader.h"
#include "runtime/ranks/position.h"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

class WeightLoader {
  public:
    // `position`, where there is one, is told which tensor is read.
    WeightLoader(Backend& backend, const Checkpoint& checkpoint, Position* position = nullptr);

    bool has_module(const std::string& module) const;  // in any form

    // Whole or sliced (n, k) matrix of `module`.
    Matrix matrix(const std::string& module, int64_t n, int64_t k);
    Matrix matrix(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    // The same where the op needs native weights: an EXL3 module is decoded to f32 on the host, and
    // only the decoded matrix takes backend memory.
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

    // Reads what was asked for since the last call: until then weights are not there. Errors as
    // WeightReader::read.
    void read(const LoadProgress& progress = {});

    // A table in backend memory that lives as long as the loader's other weights.
    const Mlp* table(const std::vector<Mlp>& entries);

    int64_t bytes() const { return bytes_; }
    // Module whose native weights lie there; nullptr: none.
    const std::string* module_at(const void* weights) const {
        const auto found = modules_.find(weights);
        return found == modules_.end() ? nullptr : &found->second;
    }
    // Tensors nothing asked for, in name order.
    std::vector<std::string> unused() const;

  private:
    const Tensor& need(const std::string& name, const std::string& expected);
    void* reserve(int64_t bytes);
    // `bytes` of the values of a made tensor: the same for a name on all ranks.
    void* make(const std::string& name, Dtype dtype, int64_t bytes);
    Matrix load_native(const Tensor& tensor, int64_t n, int64_t k, const MatrixSlice& slice);
    Matrix load_fp8(const std::string& module, const Tensor& tensor, int64_t n, int64_t k,
                    const MatrixSlice& slice);
    Matrix load_exl3(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);
    void add_exl3(const Exl3Place& place, const Matrix& matrix);
    Exl3Module find_packed(const std::string& module, int64_t n, int64_t k);
    // What is read whole, converted on the host and stored: `work` gets the tensors `names` in host
    // memory. Rare forms only.
    void later(std::vector<std::string> names, std::function<void(const Checkpoint&)> work);
    void add_f32(const Tensor& tensor, const Range& elements, float* to);
    const float* bias_of(const std::string& module, int64_t n, int64_t k, const MatrixSlice& slice);

    Backend& backend_;
    const Checkpoint& checkpoint_;
    Position* position_;
    std::vector<Buffer> blocks_;
    std::map<Dtype, Buffer> made_;  // what made tensors are filled from
    WeightReader reader_;
    struct Later {
        std::vector<std::string> names;
        std::function<void(const Checkpoint&)> work;
    };
    std::vector<Later> later_;
    int64_t block_used_ = 0;
    int64_t bytes_ = 0;
    std::set<std::string> used_;
    std::map<const void*, std::string> modules_;  // of native matrices
};

}  // namespace quadrille
