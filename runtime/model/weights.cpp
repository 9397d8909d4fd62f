// SPDX-License-Identifier: Apache-2.0
// Native tensors, vectors and memory; EXL3 modules are in weights_exl3.cpp.
#include "runtime/model/weights.h"

#include "kernels/error.h"
#include "kernels/exl3_decode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace quadrille {

namespace {

// Small tensors share large blocks: a full checkpoint has over 100,000 of them.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
constexpr int64_t kAlignment = 256;

bool is_float(Dtype dtype) {
    return dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32;
}

float load_float(const std::byte* data, Dtype dtype, int64_t index) {
    if (dtype == Dtype::f32) {
        float value;
        std::memcpy(&value, data + index * 4, 4);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, data + index * 2, 2);
    return dtype == Dtype::bf16 ? to_float(BF16{bits}) : to_float(F16{bits});
}

std::vector<int64_t> without_ones(const std::vector<int64_t>& shape) {
    std::vector<int64_t> kept;
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(kept),
                 [](int64_t extent) { return extent != 1; });
    return kept;
}

}  // namespace

WeightLoader::WeightLoader(Backend& backend, const Checkpoint& checkpoint)
    : backend_(backend), checkpoint_(checkpoint) {}

const Tensor* WeightLoader::find(const std::string& tensor_name) {
    const Tensor* tensor = checkpoint_.find(tensor_name);
    if (tensor != nullptr) used_.insert(tensor_name);
    return tensor;
}

const Tensor& WeightLoader::need(const std::string& tensor_name, const char* purpose) {
    const Tensor* tensor = find(tensor_name);
    if (tensor == nullptr) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: tensor {} is missing (expected {})",
                                checkpoint_.folder().string(), tensor_name, purpose));
    }
    return *tensor;
}

bool WeightLoader::has_module(const std::string& module) const {
    return checkpoint_.find(module) != nullptr || checkpoint_.find(module + ".weight") != nullptr ||
           checkpoint_.find(module + ".trellis") != nullptr ||
           checkpoint_.find(module + ".rank0.trellis") != nullptr;
}

void* WeightLoader::reserve(int64_t bytes) {
    if (bytes == 0) return nullptr;
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ += rounded;
    if (rounded > kBlockBytes / 4) {  // large ones get a block of their own, behind the open one
        blocks_.insert(blocks_.begin(), Buffer(backend_, rounded));
        return blocks_.front().data();
    }
    if (blocks_.empty() || blocks_.back().bytes() != kBlockBytes ||
        block_used_ + rounded > kBlockBytes) {
        blocks_.emplace_back(backend_, kBlockBytes);
        block_used_ = 0;
    }
    void* place = static_cast<std::byte*>(blocks_.back().data()) + block_used_;
    block_used_ += rounded;
    return place;
}

void* WeightLoader::store(const void* host, int64_t bytes) {
    void* place = reserve(bytes);
    backend_.upload(place, host, bytes);
    return place;
}

const Mlp* WeightLoader::table(const std::vector<Mlp>& entries) {
    return static_cast<const Mlp*>(
        store(entries.data(), static_cast<int64_t>(entries.size() * sizeof(Mlp))));
}

const float* WeightLoader::vector(const std::string& tensor_name, int64_t count) {
    return joined({tensor_name}, count, 1, {{0, count}});
}

const float* WeightLoader::vector(const std::string& tensor_name, int64_t count,
                                  const std::vector<Range>& ranges) {
    return joined({tensor_name}, count, 1, ranges);
}

const float* WeightLoader::tensor(const std::string& tensor_name,
                                  const std::vector<int64_t>& shape) {
    const std::string expected = fmt::format("[{}]", fmt::join(shape, ", "));
    const Tensor& tensor = need(tensor_name, expected.c_str());
    if (!is_float(tensor.dtype) || tensor.shape != shape) {
        throw Error(
            ErrorKind::input,
            fmt::format("{}: tensor {}: expected BF16, F16 or F32 {}, found {}",
                        checkpoint_.folder().string(), tensor_name, expected, tensor.describe()));
    }
    std::vector<float> values;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
        values.push_back(load_float(tensor.bytes.data(), tensor.dtype, i));
    }
    return static_cast<const float*>(
        store(values.data(), static_cast<int64_t>(values.size() * sizeof(float))));
}

const float* WeightLoader::joined(const std::vector<std::string>& tensors, int64_t count,
                                  int64_t width, const std::vector<Range>& ranges) {
    std::vector<float> values;
    for (const std::string& tensor_name : tensors) {
        const std::string shape =
            width == 1 ? fmt::format("[{}]", count) : fmt::format("[{}, {}]", count, width);
        const Tensor& tensor = need(tensor_name, shape.c_str());
        if (!is_float(tensor.dtype) || without_ones(tensor.shape) != without_ones({count, width})) {
            throw Error(
                ErrorKind::input,
                fmt::format("{}: tensor {}: expected BF16, F16 or F32 {}, found {}",
                            checkpoint_.folder().string(), tensor_name, shape, tensor.describe()));
        }
        for (const Range& range : ranges) {
            for (int64_t i = range.begin * width; i < range.end * width; ++i) {
                values.push_back(load_float(tensor.bytes.data(), tensor.dtype, i));
            }
        }
    }
    return static_cast<const float*>(
        store(values.data(), static_cast<int64_t>(values.size() * sizeof(float))));
}

Matrix WeightLoader::matrix(const std::string& module, int64_t n, int64_t k) {
    return matrix(module, n, k,
                  {.rows = {{0, n}}, .cols = {0, k}, .segments = 1, .segment = {0, k}});
}

Matrix WeightLoader::column_parallel(const std::string& module, int64_t n, int64_t k, Range rows) {
    return matrix(module, n, k, {.rows = {rows}, .cols = {0, k}, .segments = 1, .segment = {0, k}});
}

Matrix WeightLoader::row_parallel(const std::string& module, int64_t n, int64_t k,
                                  const SegmentedRange& share) {
    return matrix(module, n, k,
                  {.rows = {{0, n}},
                   .cols = share.range,
                   .segments = share.segments,
                   .segment = share.segment});
}

Matrix WeightLoader::matrix(const std::string& module, int64_t n, int64_t k,
                            const MatrixSlice& slice) {
    const bool split = checkpoint_.find(module + ".rank0.trellis") != nullptr;
    const bool exl3 = checkpoint_.find(module + ".trellis") != nullptr;
    const bool bare = checkpoint_.find(module) != nullptr;
    const bool native = checkpoint_.find(module + ".weight") != nullptr;
    if (int{split} + int{exl3} + int{bare} + int{native} > 1) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: module {} is stored more than once (native and EXL3)",
                                checkpoint_.folder().string(), module));
    }
    if (split) return load_presplit(module, n, k, slice);
    if (exl3) return load_exl3(module, n, k, slice);
    const std::string purpose = fmt::format("[{}, {}] or an EXL3 trellis of that size", n, k);
    return load_native(need(bare ? module : module + ".weight", purpose.c_str()), n, k, slice);
}

Matrix WeightLoader::native_matrix(const std::string& module, int64_t n, int64_t k,
                                   const MatrixSlice& slice) {
    Matrix matrix = this->matrix(module, n, k, slice);
    if (!matrix.is_exl3()) return matrix;
    // Once, at load: the packed form goes back to the host and is decoded there.
    const auto fetch = [&](const auto* from, int64_t count) {
        std::vector<std::remove_cvref_t<decltype(*from)>> values(static_cast<size_t>(count));
        backend_.download(values.data(), from, count * int64_t{sizeof(*from)});
        return values;
    };
    const std::vector<uint16_t> trellis =
        fetch(matrix.trellis, matrix.k_padded * matrix.n_padded / 16 * matrix.bits);
    const std::vector<F16> suh = fetch(matrix.suh, matrix.k_padded);
    const std::vector<F16> svh = fetch(matrix.svh, matrix.n_padded);
    Matrix packed = matrix;
    packed.trellis = trellis.data();
    packed.suh = suh.data();
    packed.svh = svh.data();
    std::vector<float> weights(static_cast<size_t>(matrix.n * matrix.k));
    exl3_dequantize(weights.data(), packed);
    Matrix native;
    native.n = matrix.n;
    native.k = matrix.k;
    native.dtype = Dtype::f32;
    native.bias = matrix.bias;
    native.segments = matrix.segments;
    native.segment = matrix.segment;
    native.weights = store(weights.data(), std::ssize(weights) * int64_t{sizeof(float)});
    return native;
}

Matrix WeightLoader::load_native(const Tensor& tensor, int64_t n, int64_t k,
                                 const MatrixSlice& slice) {
    if (!is_float(tensor.dtype) || tensor.shape != std::vector<int64_t>{n, k}) {
        throw Error(
            ErrorKind::input,
            fmt::format("{}: tensor {}: expected BF16, F16 or F32 [{}, {}], found {}",
                        checkpoint_.folder().string(), tensor.name, n, k, tensor.describe()));
    }
    Matrix matrix;
    matrix.k = slice.cols.size();
    matrix.dtype = tensor.dtype;
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    const int64_t size = size_of(tensor.dtype);
    const int64_t row_bytes = matrix.k * size;
    std::vector<std::byte> staged;
    for (const Range& rows : slice.rows) {
        matrix.n += rows.size();
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            const std::byte* from = tensor.bytes.data() + (row * k + slice.cols.begin) * size;
            staged.insert(staged.end(), from, from + row_bytes);
        }
    }
    matrix.weights = store(staged.data(), static_cast<int64_t>(staged.size()));
    return matrix;
}

std::vector<std::string> WeightLoader::unused() const {
    std::vector<std::string> names;
    for (const auto& [tensor_name, tensor] : checkpoint_.tensors()) {
        if (!used_.contains(tensor_name)) names.push_back(tensor_name);
    }
    return names;
}

}  // namespace quadrille
