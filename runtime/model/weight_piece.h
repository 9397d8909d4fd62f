// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors that a rank holds: how they are cut and brought into the order of the files,
// and how their bytes are checked and converted. Pure functions; weight_reader.h runs them.
#pragma once

#include "io/checkpoint/matrix_slice.h"
#include "io/checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quadrille {

inline constexpr int64_t kChunkBytes = int64_t{16} << 20;  // read at once

enum class PieceKind : uint8_t {
    bits,    // as they are
    values,  // as they are; each must be finite
    scales,  // the same of an EXL3 module's scales
    as_f32,  // BF16, F16 or F32, finite, placed as F32
    marker,  // of a codebook: only looked at
};

// Rows of a tensor, `stride` bytes apart; of each the bytes `spans`, in ascending order. They are
// placed without gaps at `to`.
struct WeightPiece {
    const Tensor* tensor = nullptr;
    PieceKind kind = PieceKind::bits;
    int64_t first = 0;  // byte of the tensor where the first row begins
    int64_t rows = 1;
    int64_t stride = 0;
    std::vector<Range> spans{};
    std::byte* to = nullptr;
};

// Bytes of a row that are placed, and bytes that all rows take where they are placed.
int64_t row_bytes(const WeightPiece& piece);
int64_t placed_bytes(const WeightPiece& piece);

// A piece and where its first byte lies.
struct Placed {
    WeightPiece piece;
    TensorPlace from;
};

// Bytes of a file that are read at once, and what lies in them.
struct Chunk {
    TensorPlace from;
    int64_t bytes = 0;  // read
    int64_t moved = 0;  // of pieces that do not stay as they are
    size_t first = 0;   // pieces [first, last)
    size_t last = 0;
};

// No piece is larger than a chunk afterwards.
std::vector<Placed> in_file_order(const Checkpoint& checkpoint, std::vector<WeightPiece> pieces);
// `from_files`: pieces share chunks, and what lies between them may be read.
std::vector<Chunk> chunks_of(const std::vector<Placed>& pieces, bool from_files);

// Checks a piece whose first byte is at `data` and returns it as it is placed: there, or, where it
// has gaps or another type, at `out`.
const std::byte* prepare(const Checkpoint& checkpoint, const WeightPiece& piece,
                         const std::byte* data, std::byte* out);

}  // namespace quadrille
