// SPDX-License-Identifier: Apache-2.0
// EXL3 modules: trellis, scales (or legacy packed signs), codebook markers, slices of whole
// Hadamard blocks, and packs that store every matrix split for four ranks.
#include "kernels/error.h"
#include "kernels/exl3.h"
#include "runtime/model/weights.h"

#include <fmt/format.h>

#include <cstring>

namespace quadrille {

namespace {

int64_t padded(int64_t channels) {
    return (channels + exl3::kBlock - 1) / exl3::kBlock * exl3::kBlock;
}

}  // namespace

// One stored module, still in the mapping, checked; scales in host memory.
struct WeightLoader::Exl3Parts {
    const std::byte* trellis = nullptr;  // (k_padded / 16, n_padded / 16, 16 * bits) uint16
    int64_t n = 0, k = 0;
    int64_t n_padded = 0, k_padded = 0;
    int32_t bits = 0;
    Codebook codebook = Codebook::three_inst;
    std::vector<F16> suh, svh;
};

std::vector<F16> WeightLoader::scales(const std::string& module, const char* suffix,
                                      const char* legacy, int64_t count) {
    const auto wrong = [&](const Tensor& tensor, const std::string& expected) {
        return Error(ErrorKind::input, fmt::format("{}: tensor {}: expected {}, found {}",
                                                   checkpoint_.folder().string(), tensor.name,
                                                   expected, tensor.describe()));
    };
    std::vector<F16> values(static_cast<size_t>(count));
    if (const Tensor* packed = find(module + legacy); packed != nullptr) {
        if (packed->dtype != Dtype::i16 || packed->shape != std::vector<int64_t>{count / 16}) {
            throw wrong(*packed, fmt::format("I16 [{}]", count / 16));
        }
        for (int64_t i = 0; i < count; ++i) {  // bit i of word w: channel 16 w + i, 1 means -1
            uint16_t word;
            std::memcpy(&word, packed->bytes.data() + i / 16 * 2, 2);
            values[static_cast<size_t>(i)] = to_f16((word >> (i % 16) & 1) != 0 ? -1.0f : 1.0f);
        }
        return values;
    }
    const Tensor& tensor = need(module + suffix, fmt::format("F16 [{}]", count).c_str());
    if (tensor.dtype != Dtype::f16 || tensor.shape != std::vector<int64_t>{count}) {
        throw wrong(tensor, fmt::format("F16 [{}]", count));
    }
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
}

WeightLoader::Exl3Parts WeightLoader::exl3_parts(const std::string& module, int64_t n, int64_t k) {
    const std::string folder = checkpoint_.folder().string();
    Exl3Parts parts;
    parts.n = n;
    parts.k = k;
    parts.n_padded = padded(n);
    parts.k_padded = padded(k);
    const Tensor& trellis = need(module + ".trellis", "an EXL3 trellis");
    const auto& shape = trellis.shape;
    if (trellis.dtype != Dtype::i16 || shape.size() != 3 || shape[0] != parts.k_padded / 16 ||
        shape[1] != parts.n_padded / 16 || shape[2] % 16 != 0 || shape[2] < 16 || shape[2] > 128) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: tensor {}: expected I16 [{}, {}, 16 * bits] with 1 to 8 bits, "
                                "found {}",
                                folder, trellis.name, parts.k_padded / 16, parts.n_padded / 16,
                                trellis.describe()));
    }
    parts.trellis = trellis.bytes.data();
    parts.bits = static_cast<int32_t>(shape[2] / 16);
    parts.suh = scales(module, ".suh", ".su", parts.k_padded);
    parts.svh = scales(module, ".svh", ".sv", parts.n_padded);
    const auto marker = [&](const char* suffix, uint32_t multiplier, Codebook codebook) {
        const Tensor* tensor = find(module + suffix);
        if (tensor == nullptr) return;
        if (parts.codebook != Codebook::three_inst) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: module {} has both codebook markers, mcg and mul1", folder,
                                    module));
        }
        uint32_t value = 0;
        const bool scalar = tensor->dtype == Dtype::i32 && tensor->bytes.size() == sizeof value;
        if (scalar) std::memcpy(&value, tensor->bytes.data(), sizeof value);
        if (!scalar || value != multiplier) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: tensor {}: expected I32 [] or [1] of value {}, found {} "
                                    "of value {}",
                                    folder, tensor->name, static_cast<int32_t>(multiplier),
                                    tensor->describe(), static_cast<int32_t>(value)));
        }
        parts.codebook = codebook;
    };
    marker(".mcg", exl3::kMcgMultiplier, Codebook::mcg);
    marker(".mul1", exl3::kMul1Multiplier, Codebook::mul1);
    find(module + ".scale");  // a relic that the format says to ignore
    return parts;
}

Matrix WeightLoader::slice_exl3(const std::string& module, const Exl3Parts& parts,
                                const MatrixSlice& slice) {
    const auto aligned = [&](Range range, int64_t whole) {
        return range.begin % exl3::kBlock == 0 &&
               (range.end % exl3::kBlock == 0 || range.end == whole);
    };
    bool fits = aligned(slice.cols, parts.k);
    for (const Range& rows : slice.rows) fits = fits && aligned(rows, parts.n);
    for (int s = 0; s < slice.segments; ++s) {
        fits = fits && slice.segment.at(static_cast<size_t>(s)) % exl3::kBlock == 0;
    }
    if (!fits) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: module {}: its part for this rank does not consist of whole "
                                "blocks of {} channels",
                                checkpoint_.folder().string(), module, exl3::kBlock));
    }
    Matrix matrix;
    matrix.k = slice.cols.size();
    matrix.k_padded = padded(matrix.k);
    matrix.bits = parts.bits;
    matrix.codebook = parts.codebook;
    matrix.segments = slice.segments;
    matrix.segment = slice.segment;
    std::vector<F16> svh;
    for (const Range& rows : slice.rows) {
        matrix.n += rows.size();
        matrix.n_padded += padded(rows.size());
        const auto first = parts.svh.begin() + rows.begin;
        svh.insert(svh.end(), first, first + padded(rows.size()));
    }
    const int64_t tile_bytes = int64_t{32} * parts.bits;
    std::vector<std::byte> staged;
    staged.reserve(static_cast<size_t>(matrix.k_padded / 16 * matrix.n_padded / 16 * tile_bytes));
    for (int64_t kt = 0; kt < matrix.k_padded / 16; ++kt) {
        for (const Range& rows : slice.rows) {
            const int64_t tile =
                (slice.cols.begin / 16 + kt) * (parts.n_padded / 16) + rows.begin / 16;
            const std::byte* from = parts.trellis + tile * tile_bytes;
            staged.insert(staged.end(), from, from + padded(rows.size()) / 16 * tile_bytes);
        }
    }
    matrix.trellis =
        static_cast<const uint16_t*>(store(staged.data(), static_cast<int64_t>(staged.size())));
    matrix.suh = static_cast<const F16*>(
        store(parts.suh.data() + slice.cols.begin, matrix.k_padded * int64_t{sizeof(F16)}));
    matrix.svh = static_cast<const F16*>(store(svh.data(), matrix.n_padded * int64_t{sizeof(F16)}));
    return matrix;
}

Matrix WeightLoader::load_exl3(const std::string& module, int64_t n, int64_t k,
                               const MatrixSlice& slice) {
    Matrix matrix = slice_exl3(module, exl3_parts(module, n, k), slice);
    if (checkpoint_.find(module + ".bias") == nullptr) return matrix;
    if (slice.cols.size() != k || slice.segments != 1) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: tensor {}.bias: a bias on a matrix split by input channels is "
                                "not supported",
                                checkpoint_.folder().string(), module));
    }
    matrix.bias = vector(module + ".bias", n, slice.rows);
    return matrix;
}

// Packs made for four ranks store `module.rank{r}`: a quarter of the outputs or of the inputs each.
Matrix WeightLoader::load_presplit(const std::string& module, int64_t n, int64_t k,
                                   const MatrixSlice& slice) {
    constexpr int kParts = 4;
    const Tensor& first = need(module + ".rank0.trellis", "an EXL3 trellis");
    const bool by_output = first.shape.size() == 3 && first.shape[0] == padded(k) / 16;
    const Range wanted = by_output ? slice.rows.at(0) : slice.cols;
    Exl3Parts joined;
    std::vector<std::byte> trellis;
    std::vector<Exl3Parts> pieces;
    for (int r = 0; r < kParts; ++r) {
        const Range range = block_share(by_output ? n : k, kParts, r);
        Exl3Parts piece = exl3_parts(fmt::format("{}.rank{}", module, r),
                                     by_output ? range.size() : n, by_output ? k : range.size());
        if (range.end > wanted.begin && range.begin < wanted.end) pieces.push_back(piece);
    }
    joined = pieces.at(0);
    const auto same = [](const std::vector<F16>& a, const std::vector<F16>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(F16)) == 0;
    };
    for (size_t i = 1; i < pieces.size(); ++i) {
        const Exl3Parts& piece = pieces[i];
        const bool joins = piece.bits == joined.bits && piece.codebook == joined.codebook &&
                           (by_output ? same(piece.suh, joined.suh) : same(piece.svh, joined.svh));
        if (!joins) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: module {} is stored split for {} ranks with scales of its "
                                    "own per part: run it with {} ranks",
                                    checkpoint_.folder().string(), module, kParts, kParts));
        }
        (by_output ? joined.n : joined.k) += by_output ? piece.n : piece.k;
        (by_output ? joined.n_padded : joined.k_padded) +=
            by_output ? piece.n_padded : piece.k_padded;
        std::vector<F16>& grown = by_output ? joined.svh : joined.suh;
        const std::vector<F16>& more = by_output ? piece.svh : piece.suh;
        grown.insert(grown.end(), more.begin(), more.end());
    }
    const int64_t tile_bytes = int64_t{32} * joined.bits;
    const int64_t bands = by_output ? joined.k_padded / 16 : 1;
    for (int64_t band = 0; band < bands; ++band) {  // outputs: interleave the rows of tiles
        for (const Exl3Parts& piece : pieces) {
            const int64_t tiles = (by_output ? 1 : piece.k_padded / 16) * piece.n_padded / 16;
            const std::byte* from = piece.trellis + band * tiles * tile_bytes;
            trellis.insert(trellis.end(), from, from + tiles * tile_bytes);
        }
    }
    joined.trellis = trellis.data();
    MatrixSlice whole = slice;
    if (by_output) {
        whole.rows = {{0, joined.n}};
    } else {
        whole.cols = {0, joined.k};
    }
    const bool covered = wanted.size() == (by_output ? joined.n : joined.k);
    if (!covered) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: module {}: stored parts do not match this "
                                "rank's share of {} channels",
                                checkpoint_.folder().string(), module, wanted.size()));
    }
    return slice_exl3(module, joined, whole);
}

}  // namespace quadrille
