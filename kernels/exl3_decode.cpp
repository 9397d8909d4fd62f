// SPDX-License-Identifier: Apache-2.0
#include "kernels/exl3_decode.h"

#include "kernels/error.h"
#include "kernels/exl3.h"

#include <array>
#include <cstring>
#include <vector>

namespace quadrille {

namespace {

constexpr int64_t kBlock = exl3::kBlock;

// One tile as (16, 16) rows of inputs.
std::array<float, exl3::kTileSize> decode_tile(const Matrix& matrix, int64_t tile_k,
                                               int64_t tile_n) {
    const int words = exl3::tile_words(matrix.bits);
    const int64_t tiles_n = matrix.n_padded / exl3::kTile;
    std::array<uint32_t, 64> code{};
    std::memcpy(code.data(), matrix.trellis + (tile_k * tiles_n + tile_n) * 2 * words,
                static_cast<size_t>(words) * sizeof(uint32_t));
    std::array<float, exl3::kTileSize> tile;
    for (int t = 0; t < exl3::kTileSize; ++t) {
        const int at = exl3::tile_row(t) * exl3::kTile + exl3::tile_col(t);
        const uint32_t state = exl3::tile_state(code.data(), matrix.bits, t);
        tile[static_cast<size_t>(at)] = to_float(exl3::decode(matrix.codebook, state));
    }
    return tile;
}

// In place over 128 values `stride` apart; the scale 1/sqrt(128) is left to the caller.
void hadamard(double* values, int64_t stride) {
    for (int64_t half = 1; half < kBlock; half *= 2) {
        for (int64_t i = 0; i < kBlock; ++i) {
            if ((i & half) != 0) continue;
            const double a = values[i * stride];
            const double b = values[(i + half) * stride];
            values[i * stride] = a + b;
            values[(i + half) * stride] = a - b;
        }
    }
}

}  // namespace

std::vector<float> exl3_values(Codebook codebook) {
    std::vector<float> values;
    for (uint32_t state = 0; state < 65536; ++state) {
        values.push_back(to_float(exl3::decode(codebook, state)));
    }
    return values;
}

void exl3_decode(float* out, const Matrix& matrix) {
    require(matrix.is_exl3(), "exl3_decode: an EXL3 matrix");
    for (int64_t tk = 0; tk < matrix.k_padded / exl3::kTile; ++tk) {
        for (int64_t tn = 0; tn < matrix.n_padded / exl3::kTile; ++tn) {
            const auto tile = decode_tile(matrix, tk, tn);
            for (int64_t row = 0; row < exl3::kTile; ++row) {
                std::memcpy(out + (tk * exl3::kTile + row) * matrix.n_padded + tn * exl3::kTile,
                            tile.data() + row * exl3::kTile, exl3::kTile * sizeof(float));
            }
        }
    }
}

void exl3_dequantize(float* out, const Matrix& matrix) {
    require(matrix.is_exl3(), "exl3_dequantize: an EXL3 matrix");
    std::vector<double> block(static_cast<size_t>(kBlock * kBlock));  // (inputs, outputs)
    for (int64_t k0 = 0; k0 < matrix.k; k0 += kBlock) {
        for (int64_t n0 = 0; n0 < matrix.n; n0 += kBlock) {
            for (int64_t tile = 0; tile < 64; ++tile) {
                const int64_t tk = tile / 8;
                const int64_t tn = tile % 8;
                const auto values =
                    decode_tile(matrix, k0 / exl3::kTile + tk, n0 / exl3::kTile + tn);
                for (int64_t i = 0; i < exl3::kTileSize; ++i) {
                    const int64_t row = tk * exl3::kTile + i / exl3::kTile;
                    const int64_t col = tn * exl3::kTile + i % exl3::kTile;
                    block[static_cast<size_t>(row * kBlock + col)] =
                        static_cast<double>(values[static_cast<size_t>(i)]);
                }
            }
            // Sums of 2^14 fp16 values are exact in fp64; so are both scales together, 1/128.
            for (int64_t i = 0; i < kBlock; ++i) hadamard(block.data() + i, kBlock);
            for (int64_t i = 0; i < kBlock; ++i) hadamard(block.data() + i * kBlock, 1);
            for (int64_t n = n0; n < std::min(n0 + kBlock, matrix.n); ++n) {
                for (int64_t k = k0; k < std::min(k0 + kBlock, matrix.k); ++k) {
                    const double scale = static_cast<double>(to_float(matrix.suh[k])) *
                                         static_cast<double>(to_float(matrix.svh[n])) / kBlock;
                    out[n * matrix.k + k] = static_cast<float>(
                        block[static_cast<size_t>((k - k0) * kBlock + n - n0)] * scale);
                }
            }
        }
    }
}

}  // namespace quadrille
