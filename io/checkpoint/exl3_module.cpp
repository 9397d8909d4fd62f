// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint/exl3_module.h"

#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"
#include "kernels/exl3_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace quadrille {

namespace {

using exl3::kBlock;
using exl3::kTile;
using exl3::padded;

// Signs are packed 16 to a word.
constexpr int64_t kSignBits = 16;

Range overlap(const Range& a, const Range& b) {
    const int64_t begin = std::max(a.begin, b.begin);
    return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The scales of `count` channels: F16 [count], or where those are not stored, packed signs.
const Tensor* find_scales(const Checkpoint& checkpoint, const std::string& scales,
                          const std::string& signs, int64_t count) {
    const Tensor* packed = checkpoint.find(signs);
    if (checkpoint.find(scales) == nullptr && packed != nullptr) {
        if (packed->dtype != Dtype::i16 ||
            packed->shape != std::vector<int64_t>{count / kSignBits}) {
            checkpoint.refuse(*packed, fmt::format("I16 [{}]", count / kSignBits));
        }
        return packed;
    }
    const std::string expected = fmt::format("F16 [{}]", count);
    const Tensor& tensor = checkpoint.get(scales, expected);
    if (tensor.dtype != Dtype::f16 || tensor.shape != std::vector<int64_t>{count}) {
        checkpoint.refuse(tensor, expected);
    }
    return &tensor;
}

// A module, or its part `rank`.
struct StoredPart {
    const Checkpoint& checkpoint;
    const std::string& module;
    int32_t rank;
    Markers markers;
};

Exl3Part find_part(const StoredPart& stored, const Range& rows, const Range& cols) {
    const auto& [checkpoint, module, rank, markers] = stored;
    const auto name = [&stored](TensorPart part) {
        return tensor_name(stored.module, part, stored.rank);
    };
    const int64_t n = padded(rows.size());
    const int64_t k = padded(cols.size());
    const Tensor& trellis = checkpoint.get(name(TensorPart::trellis), "an EXL3 trellis");
    const int32_t bits = trellis_bits(trellis);
    if (bits == 0 || trellis.shape[0] != k / kTile || trellis.shape[1] != n / kTile) {
        checkpoint.refuse(
            trellis, fmt::format("I16 [{}, {}, 16 * bits] with 1 to 8 bits", k / kTile, n / kTile));
    }
    return {.rows = rows,
            .cols = cols,
            .bits = bits,
            .codebook = stored_codebook(checkpoint, module, rank, markers),
            .trellis = &trellis,
            .suh = find_scales(checkpoint, name(TensorPart::suh), name(TensorPart::su), k),
            .svh = find_scales(checkpoint, name(TensorPart::svh), name(TensorPart::sv), n)};
}

// Scales, signs, markers and relics count as read with the trellis, used or not.
void add_tensors(Exl3Module& found, const Checkpoint& checkpoint, const std::string& module,
                 int32_t rank) {
    using enum TensorPart;
    for (const TensorPart part : {trellis, suh, svh, su, sv, mcg, mul1, scale}) {
        const Tensor* tensor = checkpoint.find(tensor_name(module, part, rank));
        if (tensor != nullptr) found.tensors.push_back(tensor);
    }
}

// Throws unless every range of the slice consists of whole blocks; the module's last may be short.
void check_blocks(const Exl3Module& module, const MatrixSlice& slice) {
    const auto aligned = [](const Range& range, int64_t whole) {
        return range.begin >= 0 && range.begin % kBlock == 0 && range.end <= whole &&
               (range.end % kBlock == 0 || range.end == whole);
    };
    bool fits = aligned(slice.cols, module.k);
    for (const Range& rows : slice.rows) fits = fits && aligned(rows, module.n);
    for (int s = 0; s < slice.segments; ++s) {
        fits = fits && slice.segment.at(static_cast<size_t>(s)) % kBlock == 0;
    }
    if (fits) return;
    throw Error(ErrorKind::input,
                fmt::format("{}: its part for this rank does not consist of whole blocks of {} "
                            "channels",
                            module.title, kBlock));
}

// Throws unless `parts` are one matrix: equal bits and codebook, and equal scales of the channels
// that they have in common.
void check_joined(const Exl3Module& module, const std::vector<Exl3Part>& parts) {
    const Exl3Part& first = parts.at(0);
    const auto equal = [](const Tensor& a, const Tensor& b) {
        return a.dtype == b.dtype && std::ranges::equal(a.bytes, b.bytes);
    };
    for (const Exl3Part& part : parts) {
        const bool by_output = part.cols.begin == first.cols.begin;
        if (part.bits == first.bits && part.codebook == first.codebook &&
            (by_output ? equal(*part.suh, *first.suh) : equal(*part.svh, *first.svh))) {
            continue;
        }
        throw Error(ErrorKind::input,
                    fmt::format("{} is stored split for {} ranks with bits or scales of its own "
                                "per part: run it with {} ranks",
                                module.title, kSplitRanks, kSplitRanks));
    }
}

std::vector<Exl3Part> parts_in(const Exl3Module& module, const MatrixSlice& slice) {
    std::vector<Exl3Part> parts;
    for (const Exl3Part& part : module.parts) {
        const bool wanted = std::ranges::any_of(slice.rows, [&](const Range& rows) {
            return overlap(rows, part.rows).size() > 0 && overlap(slice.cols, part.cols).size() > 0;
        });
        if (wanted) parts.push_back(part);
    }
    return parts;
}

// A short last block is stored, and read, to its padded end.
Range to_blocks(const Range& range) {
    return {range.begin, range.begin + padded(range.size())};
}

// The two sides of a matrix: its channels and their scales.
struct Side {
    Range Exl3Part::*channels;
    const Tensor* Exl3Part::*scales;
};
constexpr Side kInputs = {&Exl3Part::cols, &Exl3Part::suh};
constexpr Side kOutputs = {&Exl3Part::rows, &Exl3Part::svh};

// Codes of a trellis are always finite: scales are what can make a weight infinite or NaN.
void check_scales(const Exl3Module& module, const Tensor& tensor) {
    if (tensor.dtype != Dtype::f16) return;
    const int64_t at = find_non_finite(tensor.bytes.data(), tensor.dtype, tensor.elements());
    if (at < 0) return;
    throw Error(ErrorKind::input, fmt::format("{}: tensor {}: expected finite scales, found "
                                              "infinity or NaN at channel {}",
                                              module.title, tensor.name, at));
}

// Appends the scales of channels `range`; parts that have channels in common give them once.
void append_scales(std::vector<F16>& out, const std::vector<Exl3Part>& parts, const Side& side,
                   const Range& range) {
    int64_t at = range.begin;
    for (const Exl3Part& part : parts) {
        const Range stored = to_blocks(part.*side.channels);
        const Range own = overlap({at, range.end}, stored);
        const Tensor& tensor = *(part.*side.scales);
        for (at = std::max(at, own.begin); at < own.end; ++at) {
            const int64_t i = at - stored.begin;
            const bool packed = tensor.dtype == Dtype::i16;
            uint16_t word;
            std::memcpy(&word, tensor.bytes.data() + (packed ? i / kSignBits : i) * 2, sizeof word);
            // Bit i of sign word w is channel 16 w + i; 1 means -1.
            const bool negative = packed && (word >> (i % kSignBits) & 1) != 0;
            out.push_back(packed ? to_f16(negative ? -1.0f : 1.0f) : F16{word});
        }
    }
}

// Appends the tiles that `part` has in tile row `row` (of the module) and outputs `rows`.
void append_tiles(std::vector<std::byte>& out, const Exl3Part& part, int64_t row,
                  const Range& rows) {
    if (part.trellis->made()) return;
    const Range cols = to_blocks(part.cols);
    const Range own = overlap(rows, to_blocks(part.rows));
    if (row * kTile < cols.begin || row * kTile >= cols.end || own.size() == 0) return;
    const int64_t tile =
        (row - cols.begin / kTile) * part.trellis->shape[1] + (own.begin - part.rows.begin) / kTile;
    const int64_t tile_bytes = exl3::trellis_bytes(kTile, kTile, part.bits);
    const std::byte* from = part.trellis->bytes.data() + tile * tile_bytes;
    out.insert(out.end(), from, from + own.size() / kTile * tile_bytes);
}

}  // namespace

int32_t trellis_bits(const Tensor& trellis) {
    const auto& shape = trellis.shape;
    const bool packed = trellis.dtype == Dtype::i16 && shape.size() == 3 && shape[2] % kTile == 0 &&
                        shape[2] >= kTile && shape[2] <= 8 * kTile;
    return packed ? static_cast<int32_t>(shape[2] / kTile) : 0;
}

Codebook stored_codebook(const Checkpoint& checkpoint, const std::string& module, int32_t rank,
                         Markers markers) {
    Codebook codebook = Codebook::three_inst;
    const auto look = [&](const std::string& marker, uint32_t multiplier, Codebook marked) {
        const Tensor* tensor = checkpoint.find(marker);
        if (tensor == nullptr) return;
        if (codebook != Codebook::three_inst && codebook != marked) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: module {} has both codebook markers, mcg and mul1",
                                    checkpoint.folder().string(), module));
        }
        uint32_t value = 0;
        const bool scalar = tensor->dtype == Dtype::i32 && tensor->bytes.size() == sizeof value;
        if (scalar && markers == Markers::named) value = multiplier;
        if (scalar && markers == Markers::read) {
            checkpoint.read(*tensor, 0, std::as_writable_bytes(std::span(&value, 1)));
        }
        if (!scalar || value != multiplier) {
            throw Error(
                ErrorKind::input,
                fmt::format("{}: tensor {}: expected I32 [] or [1] of value {}, found {} "
                            "of value {}",
                            checkpoint.folder().string(), marker, static_cast<int32_t>(multiplier),
                            tensor->describe(), static_cast<int32_t>(value)));
        }
        codebook = marked;
    };
    const auto look_in = [&](int32_t owner) {
        look(tensor_name(module, TensorPart::mcg, owner), exl3::kMcgMultiplier, Codebook::mcg);
        look(tensor_name(module, TensorPart::mul1, owner), exl3::kMul1Multiplier, Codebook::mul1);
    };
    look_in(-1);
    if (rank >= 0) look_in(rank);
    return codebook;
}

Exl3Module find_exl3_module(const Checkpoint& checkpoint, const std::string& module, int64_t n,
                            int64_t k, Markers markers) {
    Exl3Module found;
    found.title = fmt::format("{}: module {}", checkpoint.folder().string(), module);
    found.n = n;
    found.k = k;
    add_tensors(found, checkpoint, module, -1);
    if (stored_as(checkpoint, module) != StoredAs::exl3_split) {
        found.parts.push_back(find_part({checkpoint, module, -1, markers}, {0, n}, {0, k}));
        return found;
    }
    const Tensor& first =
        checkpoint.get(tensor_name(module, TensorPart::trellis, 0), "an EXL3 trellis");
    const bool by_output = first.shape.size() == 3 && first.shape[0] == padded(k) / kTile;
    for (int32_t rank = 0; rank < kSplitRanks; ++rank) {
        const Range share = block_share(by_output ? n : k, kSplitRanks, rank);
        found.parts.push_back(find_part({checkpoint, module, rank, markers},
                                        by_output ? share : Range{0, n},
                                        by_output ? Range{0, k} : share));
        add_tensors(found, checkpoint, module, rank);
    }
    return found;
}

Matrix Exl3Matrix::view() const {
    Matrix matrix;
    matrix.n = n;
    matrix.k = k;
    matrix.n_padded = n_padded;
    matrix.k_padded = k_padded;
    matrix.bits = bits;
    matrix.codebook = codebook;
    matrix.trellis = reinterpret_cast<const uint16_t*>(trellis.data());
    matrix.suh = suh.data();
    matrix.svh = svh.data();
    matrix.segment = {0, k};
    return matrix;
}

std::vector<float> Exl3Matrix::decode() const {
    std::vector<float> weights(static_cast<size_t>(n * k));
    exl3_dequantize(weights.data(), view());
    return weights;
}

std::optional<Exl3Place> place_exl3(const Exl3Module& module, const MatrixSlice& slice) {
    check_blocks(module, slice);
    const std::vector<Exl3Part> parts = parts_in(module, slice);
    if (parts.size() != 1) return std::nullopt;
    const Exl3Part& part = parts[0];
    if (part.suh->dtype != Dtype::f16 || part.svh->dtype != Dtype::f16) return std::nullopt;
    Exl3Place place;
    place.part = part;
    const Range cols = to_blocks(slice.cols);
    place.cols = {cols.begin - part.cols.begin, cols.end - part.cols.begin};
    for (const Range& slice_rows : slice.rows) {
        const Range rows = to_blocks(slice_rows);
        if (rows.size() == 0) continue;
        if (overlap(rows, to_blocks(part.rows)).size() != rows.size()) return std::nullopt;
        place.rows.push_back({rows.begin - part.rows.begin, rows.end - part.rows.begin});
        place.n_padded += rows.size();
    }
    const bool inside = overlap(cols, to_blocks(part.cols)).size() == cols.size();
    return inside ? std::optional(std::move(place)) : std::nullopt;
}

Exl3Matrix shape_exl3(const Exl3Module& module, const MatrixSlice& slice) {
    check_blocks(module, slice);
    Exl3Matrix out;
    out.n = slice.n();
    out.k = slice.k();
    const std::vector<Exl3Part> parts = parts_in(module, slice);
    if (parts.empty()) return out;
    out.bits = parts[0].bits;
    out.codebook = parts[0].codebook;
    out.k_padded = padded(out.k);
    for (const Range& rows : slice.rows) out.n_padded += padded(rows.size());
    return out;
}

Exl3Matrix read_exl3(const Exl3Module& module, const MatrixSlice& slice) {
    Exl3Matrix out = shape_exl3(module, slice);
    const std::vector<Exl3Part> parts = parts_in(module, slice);
    if (parts.empty()) return out;
    for (const Exl3Part& part : parts) {
        check_scales(module, *part.suh);
        check_scales(module, *part.svh);
    }
    check_joined(module, parts);
    for (const Range& rows : slice.rows) append_scales(out.svh, parts, kOutputs, to_blocks(rows));
    append_scales(out.suh, parts, kInputs, to_blocks(slice.cols));
    out.trellis.reserve(
        static_cast<size_t>(exl3::trellis_bytes(out.n_padded, out.k_padded, out.bits)));
    const Range cols = to_blocks(slice.cols);
    for (int64_t row = cols.begin / kTile; row < cols.end / kTile; ++row) {
        for (const Range& rows : slice.rows) {
            for (const Exl3Part& part : parts)
                append_tiles(out.trellis, part, row, to_blocks(rows));
        }
    }
    return out;
}

}  // namespace quadrille
