// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/weights.h"

#include "io/checkpoint/fp8.h"
#include "io/checkpoint/made_model.h"
#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace quadrille {

namespace {

// Small tensors share large blocks: a full checkpoint has over 100,000 of them.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
constexpr int64_t kAlignment = 256;
constexpr int64_t kMadeBytes = int64_t{32} << 20;  // of each kind of made values

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

WeightLoader::WeightLoader(Backend& backend, const Checkpoint& checkpoint, Position* position)
    : backend_(backend), checkpoint_(checkpoint), position_(position) {}

const Tensor& WeightLoader::need(const std::string& tensor_name, const std::string& expected) {
    used_.insert(tensor_name);
    if (position_ != nullptr) {
        position_->about(fmt::format("{}: tensor {}", checkpoint_.folder().string(), tensor_name));
    }
    return checkpoint_.get(tensor_name, expected);
}

bool WeightLoader::has_module(const std::string& module) const {
    return stored_as(checkpoint_, module) != StoredAs::absent;
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

void* WeightLoader::make(const std::string& name, Dtype dtype, int64_t bytes) {
    require(dtype == Dtype::bf16 || dtype == Dtype::i16, "made values are BF16 or bits");
    Buffer& from = made_[dtype];
    if (from.bytes() == 0) {
        const std::vector<uint16_t> values = made_values(dtype, kMadeBytes / 2);
        from = Buffer(backend_, kMadeBytes);
        backend_.upload(from.data(), values.data(), kMadeBytes);
    }
    auto* place = static_cast<std::byte*>(reserve(bytes));
    const uint64_t shift = std::hash<std::string>{}(name) % (kMadeBytes / kAlignment / 2);
    const int64_t first = static_cast<int64_t>(shift) * kAlignment;
    for (int64_t at = 0; at < bytes;) {
        const int64_t count = std::min(bytes - at, kMadeBytes - first);
        backend_.copy(place + at, static_cast<const std::byte*>(from.data()) + first, count);
        at += count;
    }
    return place;
}

template <class T>
const T* WeightLoader::store(const std::vector<T>& values) {
    return static_cast<const T*>(store(values.data(), std::ssize(values) * int64_t{sizeof(T)}));
}

const Mlp* WeightLoader::table(const std::vector<Mlp>& entries) {
    return store(entries);
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
    const Tensor& tensor = need(tensor_name, expected);
    if (!is_float(tensor.dtype) || tensor.shape != shape) {
        checkpoint_.refuse(tensor, "BF16, F16 or F32 " + expected);
    }
    checkpoint_.check_finite(tensor, 0, tensor.elements());
    std::vector<float> values;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
        values.push_back(load_float(tensor.bytes.data(), tensor.dtype, i));
    }
    return store(values);
}

const float* WeightLoader::joined(const std::vector<std::string>& tensors, int64_t count,
                                  int64_t width, const std::vector<Range>& ranges) {
    std::vector<float> values;
    for (const std::string& tensor_name : tensors) {
        const std::string shape =
            width == 1 ? fmt::format("[{}]", count) : fmt::format("[{}, {}]", count, width);
        const Tensor& tensor = need(tensor_name, shape);
        if (!is_float(tensor.dtype) || without_ones(tensor.shape) != without_ones({count, width})) {
            checkpoint_.refuse(tensor, "BF16, F16 or F32 " + shape);
        }
        for (const Range& range : ranges) {
            checkpoint_.check_finite(tensor, range.begin * width, range.size() * width);
            for (int64_t i = range.begin * width; i < range.end * width; ++i) {
                values.push_back(load_float(tensor.bytes.data(), tensor.dtype, i));
            }
        }
    }
    return store(values);
}

Matrix WeightLoader::matrix(const std::string& module, int64_t n, int64_t k) {
    return matrix(module, n, k, MatrixSlice::of_rows({{0, n}}, k));
}

Matrix WeightLoader::column_parallel(const std::string& module, int64_t n, int64_t k, Range rows) {
    return matrix(module, n, k, MatrixSlice::of_rows({rows}, k));
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
    const StoredAs form = stored_as(checkpoint_, module);
    if (form == StoredAs::exl3 || form == StoredAs::exl3_split) {
        const Exl3Matrix packed = read_packed(module, n, k, slice);
        Matrix matrix = packed.view();
        matrix.segments = slice.segments;
        matrix.segment = slice.segment;
        const int64_t bytes = exl3::trellis_bytes(packed.n_padded, packed.k_padded, packed.bits);
        matrix.trellis = static_cast<const uint16_t*>(packed.trellis.empty()
                                                          ? make(module, Dtype::i16, bytes)
                                                          : store(packed.trellis.data(), bytes));
        matrix.suh = store(packed.suh);
        matrix.svh = store(packed.svh);
        matrix.bias = bias_of(module, n, k, slice);
        return matrix;
    }
    const TensorPart part = form == StoredAs::bare ? TensorPart::bare : TensorPart::weight;
    const Tensor& tensor = need(tensor_name(module, part),
                                fmt::format("[{}, {}] or an EXL3 trellis of that size", n, k));
    if (tensor.dtype == Dtype::f8_e4m3) return load_fp8(module, tensor, n, k, slice);
    return load_native(tensor, n, k, slice);
}

Matrix WeightLoader::native_matrix(const std::string& module, int64_t n, int64_t k,
                                   const MatrixSlice& slice) {
    const StoredAs form = stored_as(checkpoint_, module);
    if (form != StoredAs::exl3 && form != StoredAs::exl3_split) return matrix(module, n, k, slice);
    Matrix native;
    native.n = slice.n();
    native.k = slice.k();
    native.dtype = Dtype::f32;
    const Tensor* trellis = checkpoint_.find(tensor_name(module, TensorPart::trellis));
    require(trellis == nullptr || !trellis->made(), "made values are not decoded");
    native.segments = slice.segments;
    native.segment = slice.segment;
    native.weights = store(read_packed(module, n, k, slice).decode());
    native.bias = bias_of(module, n, k, slice);
    return native;
}

Exl3Matrix WeightLoader::read_packed(const std::string& module, int64_t n, int64_t k,
                                     const MatrixSlice& slice) {
    const Exl3Module stored = find_exl3_module(checkpoint_, module, n, k);
    for (const Tensor* tensor : stored.tensors) used_.insert(tensor->name);
    return read_exl3(stored, slice);
}

// The bias of an EXL3 module, or nullptr.
const float* WeightLoader::bias_of(const std::string& module, int64_t n, int64_t k,
                                   const MatrixSlice& slice) {
    const std::string bias = tensor_name(module, TensorPart::bias);
    if (checkpoint_.find(bias) == nullptr) return nullptr;
    if (slice.cols.size() != k || slice.segments != 1) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: tensor {}: a bias on a matrix split by input channels is "
                                "not supported",
                                checkpoint_.folder().string(), bias));
    }
    return vector(bias, n, slice.rows);
}

Matrix WeightLoader::load_native(const Tensor& tensor, int64_t n, int64_t k,
                                 const MatrixSlice& slice) {
    if (!is_float(tensor.dtype) || tensor.shape != std::vector<int64_t>{n, k}) {
        checkpoint_.refuse(tensor, fmt::format("BF16, F16 or F32 [{}, {}]", n, k));
    }
    Matrix matrix;
    matrix.n = slice.n();
    matrix.k = slice.k();
    matrix.dtype = tensor.dtype;
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    const int64_t size = size_of(tensor.dtype);
    if (tensor.made()) {
        matrix.weights = make(tensor.name, tensor.dtype, matrix.n * matrix.k * size);
        return matrix;
    }
    std::vector<std::byte> staged;
    for (const Range& rows : slice.rows) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            checkpoint_.check_finite(tensor, row * k + slice.cols.begin, matrix.k);
            const std::byte* from = tensor.bytes.data() + (row * k + slice.cols.begin) * size;
            staged.insert(staged.end(), from, from + matrix.k * size);
        }
    }
    matrix.weights = store(staged);
    return matrix;
}

// FP8 times its scales, rounded to bf16: what the release's own loaders compute with.
Matrix WeightLoader::load_fp8(const std::string& module, const Tensor& tensor, int64_t n, int64_t k,
                              const MatrixSlice& slice) {
    const Fp8Weight weight = find_fp8(checkpoint_, module, tensor, n, k);
    used_.insert(weight.scales->name);
    Matrix matrix;
    matrix.n = slice.n();
    matrix.k = slice.k();
    matrix.dtype = Dtype::bf16;
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    std::vector<float> values(static_cast<size_t>(matrix.k));
    std::vector<BF16> staged;
    staged.reserve(static_cast<size_t>(matrix.n * matrix.k));
    for (const Range& rows : slice.rows) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            read_fp8(weight, row, slice.cols.begin, values);
            const int64_t bad =
                find_non_finite(std::as_bytes(std::span(values)).data(), Dtype::f32, matrix.k);
            if (bad >= 0) checkpoint_.refuse_non_finite(tensor, row * k + slice.cols.begin + bad);
            for (const float value : values) staged.push_back(to_bf16(value));
        }
    }
    matrix.weights = store(staged);
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
