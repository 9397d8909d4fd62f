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
#include <functional>
#include <optional>
#include <utility>

namespace quadrille {

namespace {

// Small tensors share large blocks: a full checkpoint has over 100,000 of them.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
constexpr int64_t kAlignment = 256;
constexpr int64_t kMadeBytes = int64_t{32} << 20;  // of each kind of made values

bool is_float(Dtype dtype) {
    return dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32;
}

// These tensors in host memory, as a checkpoint without files.
Checkpoint in_memory(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
    std::vector<Tensor> tensors;
    std::vector<std::vector<std::byte>> data;
    for (const std::string& name : names) {
        Tensor tensor = checkpoint.get(name, "a tensor that was there");
        std::vector<std::byte>& bytes = data.emplace_back(tensor.bytes.size());
        checkpoint.read(tensor, 0, bytes);
        tensor.bytes = bytes;
        tensors.push_back(std::move(tensor));
    }
    return {checkpoint.folder().string(), std::move(tensors), std::move(data)};
}

std::vector<std::string> names_of(const Exl3Module& module) {
    std::vector<std::string> names;
    for (const Tensor* tensor : module.tensors) names.push_back(tensor->name);
    return names;
}

// Row by row, so that no more than one is on the host.
void place_fp8(Backend& backend, const Checkpoint& checkpoint, const Fp8Weight& weight,
               const MatrixSlice& slice, BF16* to) {
    const int64_t k = slice.k();
    std::vector<float> values(static_cast<size_t>(k));
    std::vector<BF16> staged(values.size());
    for (const Range& rows : slice.rows) {
        for (int64_t row = rows.begin; row < rows.end; ++row, to += k) {
            read_fp8(weight, row, slice.cols.begin, values);
            const int64_t bad =
                find_non_finite(std::as_bytes(std::span(values)).data(), Dtype::f32, k);
            if (bad >= 0) {
                checkpoint.refuse_non_finite(*weight.weight,
                                             row * weight.k + slice.cols.begin + bad);
            }
            std::ranges::transform(values, staged.begin(), [](float v) { return to_bf16(v); });
            backend.upload(to, staged.data(), k * int64_t{sizeof(BF16)});
        }
    }
}

std::vector<int64_t> without_ones(const std::vector<int64_t>& shape) {
    std::vector<int64_t> kept;
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(kept),
                 [](int64_t extent) { return extent != 1; });
    return kept;
}

}  // namespace

WeightLoader::WeightLoader(Backend& backend, const Checkpoint& checkpoint, Position* position)
    : backend_(backend),
      checkpoint_(checkpoint),
      position_(position),
      reader_(backend, checkpoint) {}

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
        blocks_.insert(blocks_.begin(), Buffer(backend_, rounded, Memory::weights));
        return blocks_.front().data();
    }
    if (blocks_.empty() || blocks_.back().bytes() != kBlockBytes ||
        block_used_ + rounded > kBlockBytes) {
        blocks_.emplace_back(backend_, kBlockBytes, Memory::weights);
        block_used_ = 0;
    }
    void* place = static_cast<std::byte*>(blocks_.back().data()) + block_used_;
    block_used_ += rounded;
    return place;
}

void WeightLoader::later(std::vector<std::string> names,
                         std::function<void(const Checkpoint&)> work) {
    later_.push_back({std::move(names), std::move(work)});
}

void WeightLoader::read(const LoadProgress& progress) {
    if (backend_.on_paper()) return;
    reader_.read(position_, progress);
    for (const auto& [names, work] : std::exchange(later_, {})) {
        if (position_ != nullptr) {
            position_->about(
                fmt::format("{}: tensor {}", checkpoint_.folder().string(), names.front()));
        }
        work(in_memory(checkpoint_, names));
    }
}

void* WeightLoader::make(const std::string& name, Dtype dtype, int64_t bytes) {
    require(dtype == Dtype::bf16 || dtype == Dtype::i16, "made values are BF16 or bits");
    if (backend_.on_paper()) return reserve(bytes);
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

const Mlp* WeightLoader::table(const std::vector<Mlp>& entries) {
    const int64_t bytes = std::ssize(entries) * int64_t{sizeof(Mlp)};
    void* place = reserve(bytes);
    backend_.upload(place, entries.data(), bytes);
    return static_cast<const Mlp*>(place);
}

void WeightLoader::add_f32(const Tensor& tensor, const Range& elements, float* to) {
    const int64_t size = size_of(tensor.dtype);
    reader_.add(tensor, PieceKind::as_f32, {elements.begin * size, elements.end * size}, to);
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
    auto* const to = static_cast<float*>(reserve(tensor.elements() * int64_t{sizeof(float)}));
    add_f32(tensor, {0, tensor.elements()}, to);
    return to;
}

const float* WeightLoader::joined(const std::vector<std::string>& tensors, int64_t count,
                                  int64_t width, const std::vector<Range>& ranges) {
    int64_t values = 0;
    for (const Range& range : ranges) values += range.size() * width * std::ssize(tensors);
    auto* const joined = static_cast<float*>(reserve(values * int64_t{sizeof(float)}));
    float* to = joined;
    for (const std::string& tensor_name : tensors) {
        const std::string shape =
            width == 1 ? fmt::format("[{}]", count) : fmt::format("[{}, {}]", count, width);
        const Tensor& tensor = need(tensor_name, shape);
        if (!is_float(tensor.dtype) || without_ones(tensor.shape) != without_ones({count, width})) {
            checkpoint_.refuse(tensor, "BF16, F16 or F32 " + shape);
        }
        for (const Range& range : ranges) {
            add_f32(tensor, {range.begin * width, range.end * width}, to);
            to += range.size() * width;
        }
    }
    return joined;
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
        return load_exl3(module, n, k, slice);
    }
    const TensorPart part = form == StoredAs::bare ? TensorPart::bare : TensorPart::weight;
    const Tensor& tensor = need(tensor_name(module, part),
                                fmt::format("[{}, {}] or an EXL3 trellis of that size", n, k));
    const Matrix matrix = tensor.dtype == Dtype::f8_e4m3 ? load_fp8(module, tensor, n, k, slice)
                                                         : load_native(tensor, n, k, slice);
    modules_[matrix.weights] = module;
    return matrix;
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
    const int64_t bytes = native.n * native.k * int64_t{sizeof(float)};
    void* const to = reserve(bytes);
    native.weights = to;
    later(names_of(find_packed(module, n, k)), [=, this](const Checkpoint& host) {
        const Exl3Matrix packed = read_exl3(find_exl3_module(host, module, n, k), slice);
        backend_.upload(to, packed.decode().data(), bytes);
    });
    native.bias = bias_of(module, n, k, slice);
    return native;
}

Exl3Module WeightLoader::find_packed(const std::string& module, int64_t n, int64_t k) {
    Exl3Module stored = find_exl3_module(checkpoint_, module, n, k, Markers::named);
    for (const Tensor* tensor : stored.tensors) used_.insert(tensor->name);
    return stored;
}

Matrix WeightLoader::load_exl3(const std::string& module, int64_t n, int64_t k,
                               const MatrixSlice& slice) {
    const Exl3Module stored = find_packed(module, n, k);
    const Exl3Matrix shape = shape_exl3(stored, slice);
    Matrix matrix = shape.view();
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    const int64_t bytes = exl3::trellis_bytes(shape.n_padded, shape.k_padded, shape.bits);
    const bool made = stored.parts[0].trellis->made();
    auto* const trellis =
        static_cast<uint16_t*>(made ? make(module, Dtype::i16, bytes) : reserve(bytes));
    auto* const suh = static_cast<F16*>(reserve(shape.k_padded * int64_t{sizeof(F16)}));
    auto* const svh = static_cast<F16*>(reserve(shape.n_padded * int64_t{sizeof(F16)}));
    matrix.trellis = trellis;
    matrix.suh = suh;
    matrix.svh = svh;
    if (const std::optional<Exl3Place> place = place_exl3(stored, slice)) {
        add_exl3(*place, matrix);
        for (const Tensor* tensor : stored.tensors) {
            const TensorPart part = parse_tensor_name(tensor->name).part;
            if (part != TensorPart::mcg && part != TensorPart::mul1) continue;
            reader_.add(*tensor, PieceKind::marker, {0, std::ssize(tensor->bytes)}, nullptr);
        }
    } else if (bytes > 0) {
        later(names_of(stored), [=, this](const Checkpoint& host) {
            const Exl3Matrix packed = read_exl3(find_exl3_module(host, module, n, k), slice);
            backend_.upload(trellis, packed.trellis.data(), bytes);
            backend_.upload(suh, packed.suh.data(), std::ssize(packed.suh) * 2);
            backend_.upload(svh, packed.svh.data(), std::ssize(packed.svh) * 2);
        });
    }
    matrix.bias = bias_of(module, n, k, slice);
    return matrix;
}

void WeightLoader::add_exl3(const Exl3Place& place, const Matrix& matrix) {
    const Exl3Part& part = place.part;
    const auto scales = [&](const Tensor& tensor, const Range& channels, const F16* to) {
        reader_.add(tensor, PieceKind::scales, {channels.begin * 2, channels.end * 2},
                    const_cast<F16*>(to));
    };
    scales(*part.suh, place.cols, matrix.suh);
    const int64_t tile_bytes = exl3::trellis_bytes(exl3::kTile, exl3::kTile, part.bits);
    WeightPiece tiles{.tensor = part.trellis,
                      .stride = part.trellis->shape[1] * tile_bytes,
                      .to = reinterpret_cast<std::byte*>(const_cast<uint16_t*>(matrix.trellis))};
    const F16* to = matrix.svh;
    for (const Range& rows : place.rows) {
        scales(*part.svh, rows, to);
        to += rows.size();
        tiles.spans.push_back(
            {rows.begin / exl3::kTile * tile_bytes, rows.end / exl3::kTile * tile_bytes});
    }
    tiles.rows = place.cols.size() / exl3::kTile;
    tiles.first = place.cols.begin / exl3::kTile * tiles.stride;
    if (!part.trellis->made()) reader_.add(std::move(tiles));
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
    auto* to = static_cast<std::byte*>(reserve(matrix.n * matrix.k * size));
    matrix.weights = to;
    for (const Range& rows : slice.rows) {
        reader_.add({.tensor = &tensor,
                     .kind = PieceKind::values,
                     .first = rows.begin * k * size,
                     .rows = rows.size(),
                     .stride = k * size,
                     .spans = {{slice.cols.begin * size, slice.cols.end * size}},
                     .to = to});
        to += rows.size() * matrix.k * size;
    }
    return matrix;
}

// FP8 times its scales, rounded to bf16: what the release's own loaders compute with.
Matrix WeightLoader::load_fp8(const std::string& module, const Tensor& tensor, int64_t n, int64_t k,
                              const MatrixSlice& slice) {
    const std::string scales = tensor_name(module, TensorPart::weight_scale_inv);
    used_.insert(scales);
    Matrix matrix;
    matrix.n = slice.n();
    matrix.k = slice.k();
    matrix.dtype = Dtype::bf16;
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    auto* const to = static_cast<BF16*>(reserve(matrix.n * matrix.k * int64_t{sizeof(BF16)}));
    matrix.weights = to;
    later({tensor.name, scales}, [=, this, &tensor](const Checkpoint& host) {
        const Fp8Weight weight = find_fp8(host, module, *host.find(tensor.name), n, k);
        place_fp8(backend_, host, weight, slice, to);
    });
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
