// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/weight_piece.h"

#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace quadrille {

namespace {

// Bytes between two pieces that are read along: a second read costs more.
constexpr int64_t kGapBytes = int64_t{64} << 10;

// Bytes of the file from the first to the last of a piece.
int64_t extent(const WeightPiece& piece) {
    return (piece.rows - 1) * piece.stride + piece.spans.back().end - piece.spans.front().begin;
}

// True: what is placed are the bytes of the file as they lie there.
bool stays(const WeightPiece& piece) {
    return piece.rows == 1 && piece.spans.size() == 1 && piece.kind != PieceKind::as_f32;
}

// Pieces of at most a chunk, in memory as in the file.
std::vector<WeightPiece> cut(WeightPiece piece) {
    std::vector<WeightPiece> parts;
    const auto fits = [](const WeightPiece& part) {
        return std::max(extent(part), placed_bytes(part)) <= kChunkBytes;
    };
    while (!fits(piece)) {
        WeightPiece part = piece;
        if (piece.rows > 1) {
            part.rows = piece.rows / 2;
            piece.rows -= part.rows;
            piece.first += part.rows * piece.stride;
        } else {
            require(piece.spans.size() == 1, "a row of several spans within a chunk");
            Range& span = piece.spans[0];
            part.spans[0].end = span.begin = span.begin + kChunkBytes / 4;
        }
        piece.to += placed_bytes(part);
        for (WeightPiece& small : cut(std::move(part))) parts.push_back(std::move(small));
    }
    parts.push_back(std::move(piece));
    return parts;
}

[[noreturn]] void refuse_marker(const Checkpoint& checkpoint, const Tensor& tensor, uint32_t found,
                                uint32_t expected) {
    throw Error(
        ErrorKind::input,
        fmt::format("{}: tensor {}: expected the value {}, found {}", checkpoint.folder().string(),
                    tensor.name, static_cast<int32_t>(expected), static_cast<int32_t>(found)));
}

// `bytes` at `data` are those of the piece's tensor from byte `at` on.
void check_bytes(const Checkpoint& checkpoint, const WeightPiece& piece, const std::byte* data,
                 int64_t at, int64_t bytes) {
    const Tensor& tensor = *piece.tensor;
    if (piece.kind == PieceKind::bits) return;
    if (piece.kind == PieceKind::marker) {
        const bool mcg = parse_tensor_name(tensor.name).part == TensorPart::mcg;
        const uint32_t expected = mcg ? exl3::kMcgMultiplier : exl3::kMul1Multiplier;
        uint32_t found = 0;
        std::memcpy(&found, data, sizeof found);
        if (found != expected) refuse_marker(checkpoint, tensor, found, expected);
        return;
    }
    const int64_t size = size_of(tensor.dtype);
    const int64_t bad = find_non_finite(data, tensor.dtype, bytes / size);
    if (bad < 0) return;
    const int64_t element = at / size + bad;
    if (piece.kind != PieceKind::scales) checkpoint.refuse_non_finite(tensor, element);
    throw Error(ErrorKind::input,
                fmt::format("{}: tensor {}: expected finite scales, found infinity or NaN at "
                            "channel {}",
                            checkpoint.folder().string(), tensor.name, element));
}

// Returns the end of what was written to `out`.
std::byte* widen(std::byte* out, const std::byte* from, Dtype dtype, int64_t bytes) {
    const int64_t size = size_of(dtype);
    for (int64_t i = 0; i < bytes / size; ++i, out += 4) {
        float value;
        uint16_t bits;
        if (dtype == Dtype::f32) {
            std::memcpy(&value, from + i * 4, 4);
        } else {
            std::memcpy(&bits, from + i * 2, 2);
            value = dtype == Dtype::bf16 ? to_float(BF16{bits}) : to_float(F16{bits});
        }
        std::memcpy(out, &value, 4);
    }
    return out;
}

}  // namespace

int64_t row_bytes(const WeightPiece& piece) {
    int64_t bytes = 0;
    for (const Range& span : piece.spans) bytes += span.size();
    return bytes;
}

int64_t placed_bytes(const WeightPiece& piece) {
    const int64_t bytes = piece.rows * row_bytes(piece);
    if (piece.kind == PieceKind::marker) return 0;
    return piece.kind == PieceKind::as_f32 ? bytes / size_of(piece.tensor->dtype) * 4 : bytes;
}

std::vector<Placed> in_file_order(const Checkpoint& checkpoint, std::vector<WeightPiece> pieces) {
    std::vector<Placed> placed;
    placed.reserve(pieces.size());
    for (WeightPiece& piece : pieces) {
        for (WeightPiece& part : cut(std::move(piece))) {
            TensorPlace from = checkpoint.place(*part.tensor);
            from.begin += part.first + part.spans.front().begin;
            placed.push_back({std::move(part), from});
        }
    }
    std::ranges::stable_sort(
        placed, {}, [](const Placed& each) { return std::pair(each.from.file, each.from.begin); });
    return placed;
}

std::vector<Chunk> chunks_of(const std::vector<Placed>& pieces, bool from_files) {
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const auto& [piece, from] = pieces[i];
        const int64_t end = from.begin + extent(piece);
        const int64_t moved = stays(piece) ? 0 : placed_bytes(piece);
        if (from_files && !chunks.empty() && chunks.back().from.file == from.file) {
            Chunk& last = chunks.back();
            const int64_t gap = from.begin - (last.from.begin + last.bytes);
            const int64_t bytes = std::max(last.bytes, end - last.from.begin);
            if (gap <= kGapBytes && bytes <= kChunkBytes && last.moved + moved <= kChunkBytes) {
                last.bytes = bytes;
                last.moved += moved;
                last.last = i + 1;
                continue;
            }
        }
        chunks.push_back({from, end - from.begin, moved, i, i + 1});
    }
    return chunks;
}

const std::byte* prepare(const Checkpoint& checkpoint, const WeightPiece& piece,
                         const std::byte* data, std::byte* out) {
    const std::byte* const dense = stays(piece) ? data : out;
    for (int64_t row = 0; row < piece.rows; ++row) {
        for (const Range& span : piece.spans) {
            const int64_t at = row * piece.stride + span.begin;
            const std::byte* const from = data + at - piece.spans.front().begin;
            check_bytes(checkpoint, piece, from, piece.first + at, span.size());
            if (stays(piece)) continue;
            if (piece.kind == PieceKind::as_f32) {
                out = widen(out, from, piece.tensor->dtype, span.size());
            } else {
                std::memcpy(out, from, static_cast<size_t>(span.size()));
                out += span.size();
            }
        }
    }
    return dense;
}

}  // namespace quadrille
