// SPDX-License-Identifier: Apache-2.0
// The EXL3 format against values of other implementations: codebooks, bit order, tile order, and
// the decoded weights and products of 24 matrices.
#include "kernels/exl3.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/exl3_decode.h"
#include "tests/support/golden.h"
#include "tests/support/matrices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace quadrille::test {
namespace {

constexpr std::array kCodebooks = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};
constexpr std::array kCodebookNames = {"3inst", "mcg", "mul1"};

uint32_t crc32(const std::vector<uint16_t>& words) {
    uint32_t crc = 0xffffffffu;
    for (const uint16_t word : words) {
        for (const uint32_t byte : {word & 0xffu, static_cast<uint32_t>(word) >> 8}) {
            crc ^= byte;
            for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1u ? 0xedb88320u : 0u);
        }
    }
    return ~crc;
}

std::vector<uint16_t> f16_bits(std::span<const float> values) {
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(to_f16(value).bits);
    return bits;
}

TEST(Exl3, CodebooksAreThoseOfTheReference) {
    constexpr std::array<uint32_t, 3> kCrc = {0x4c83d524u, 0xd2d13c52u, 0x2bdf05c5u};
    constexpr std::array<std::array<uint16_t, 5>, 3> kSpots = {{
        {0x3a25, 0xbb5b, 0x3b74, 0xc066, 0xb110},
        {0x3f60, 0x304e, 0xba13, 0x3e0f, 0x3acd},
        {0xc2e8, 0x3921, 0xb72d, 0xb89e, 0xb936},
    }};
    constexpr std::array<uint32_t, 5> kStates = {0, 1, 2, 0x1234, 0xffff};
    for (size_t c = 0; c < 3; ++c) {
        std::vector<uint16_t> table;
        for (uint32_t state = 0; state < 65536; ++state) {
            table.push_back(exl3::decode(kCodebooks[c], state).bits);
        }
        EXPECT_EQ(crc32(table), kCrc[c]) << kCodebookNames[c];
        for (size_t i = 0; i < kStates.size(); ++i) {
            EXPECT_EQ(table[kStates[i]], kSpots[c][i]) << kCodebookNames[c] << " state " << i;
        }
        const std::vector<float> fast = cpu::codebook_table(kCodebooks[c]);
        EXPECT_EQ(f16_bits(fast), table) << kCodebookNames[c];
    }
}

TEST(Exl3, TilePositionsAndRowsAndColumnsAreInverse) {
    for (int t = 0; t < exl3::kTileSize; ++t) {
        EXPECT_EQ(exl3::tile_position(exl3::tile_row(t), exl3::tile_col(t)), t);
    }
    // Rows of the published table.
    EXPECT_EQ(exl3::tile_position(1, 0), 1);
    EXPECT_EQ(exl3::tile_position(0, 1), 32);
    EXPECT_EQ(exl3::tile_position(8, 0), 2);
    EXPECT_EQ(exl3::tile_position(0, 8), 4);
    EXPECT_EQ(exl3::tile_position(15, 15), 255);
}

struct Vector {
    std::array<uint16_t, 4> states;
    uint32_t states_crc;
    std::array<uint32_t, 3> weights_crc;
};
constexpr std::array<Vector, 8> kVectors = {{
    {{0x4e13, 0x9c26, 0x384c, 0x7099}, 0x4b13ee27, {0x20d9ed8e, 0xb0569986, 0xc439ddac}},
    {{0x29e6, 0xa799, 0x9e67, 0x799e}, 0x3d91c10f, {0xd6bcbd06, 0x796357e7, 0x1bc32c5e}},
    {{0x6f4c, 0x7a67, 0xd33c, 0x99e3}, 0x40389404, {0x5bff902c, 0x8c94aefc, 0xb65e02be}},
    {{0x1599, 0x599e, 0x99e3, 0x9e3e}, 0xbfb8b0bd, {0x1affeba7, 0xbb83a745, 0x9c464e06}},
    {{0x9933, 0x2678, 0xcf1f, 0xe3e0}, 0x0dccee0b, {0xeaea3faa, 0xf0e2f931, 0x76b182f5}},
    {{0x0e67, 0x99e3, 0x78f8, 0x3e00}, 0x9bd7470e, {0xef8cf31d, 0x6c7b3c8d, 0xfc55face}},
    {{0xd4cf, 0x678f, 0xc7c0, 0xe000}, 0xd8fcad61, {0xa38e9c04, 0x77a80449, 0x35d18a2e}},
    {{0x199e, 0x9e3e, 0x3e00, 0x0007}, 0x0e9ae33d, {0x47020aaf, 0xabe09aa4, 0xfaf14c07}},
}};

TEST(Exl3, StatesAndWeightsOfTheTestVectors) {
    for (int bits = 1; bits <= 8; ++bits) {
        const Vector& expected = kVectors[static_cast<size_t>(bits - 1)];
        std::vector<uint16_t> trellis;
        for (uint32_t i = 0; i < static_cast<uint32_t>(2 * 8 * 16 * bits); ++i) {
            trellis.push_back(static_cast<uint16_t>(i * 40503u + 7u));
        }
        std::vector<uint16_t> states;
        for (size_t tile = 0; tile < 16; ++tile) {
            std::vector<uint32_t> words;
            for (size_t w = 0; w < static_cast<size_t>(8 * bits); ++w) {
                const size_t at = 2 * (tile * 8 * static_cast<size_t>(bits) + w);
                words.push_back(trellis[at] | static_cast<uint32_t>(trellis[at + 1]) << 16);
            }
            for (int t = 0; t < 256; ++t) {
                states.push_back(static_cast<uint16_t>(exl3::tile_state(words.data(), bits, t)));
            }
        }
        for (size_t i = 0; i < 4; ++i) EXPECT_EQ(states[i], expected.states[i]) << bits;
        EXPECT_EQ(crc32(states), expected.states_crc) << bits;
        for (size_t c = 0; c < 3; ++c) {
            Matrix matrix;
            matrix.trellis = trellis.data();
            matrix.k = matrix.k_padded = 32;
            matrix.n = matrix.n_padded = 128;
            matrix.bits = bits;
            matrix.codebook = kCodebooks[c];
            std::vector<float> weights(32 * 128);
            exl3_decode(weights.data(), matrix);
            EXPECT_EQ(crc32(f16_bits(weights)), expected.weights_crc[c])
                << bits << " bits " << kCodebookNames[c];
        }
    }
}

// One of the 24 matrices of tests/data/exl3_decode.h5.
struct GoldenMatrix {
    std::string name;
    MatrixData data;
    std::vector<uint16_t> inner;
};

std::vector<GoldenMatrix> golden_matrices(const Golden& file) {
    std::vector<GoldenMatrix> out;
    for (int bits = 1; bits <= 8; ++bits) {
        for (size_t c = 0; c < 3; ++c) {
            const std::string name = fmt::format("b{}_{}", bits, kCodebookNames[c]);
            std::vector<uint16_t> trellis;
            for (const int16_t word : file.read<int16_t>(name + "/trellis").values) {
                trellis.push_back(static_cast<uint16_t>(word));
            }
            GoldenMatrix matrix{
                name,
                MatrixData::exl3(trellis, file.read<F16>(name + "/suh").values,
                                 file.read<F16>(name + "/svh").values, bits, kCodebooks[c]),
                {}};
            for (const F16 value : file.read<F16>(name + "/inner").values) {
                matrix.inner.push_back(value.bits);
            }
            out.push_back(std::move(matrix));
        }
    }
    return out;
}

TEST(Exl3, DecodesTheGoldenMatricesBitForBit) {
    const Golden file(data_path("exl3_decode.h5"));
    ASSERT_EQ(file.children().size(), 24u);
    for (const GoldenMatrix& golden : golden_matrices(file)) {
        std::vector<float> weights(golden.inner.size());
        exl3_decode(weights.data(), golden.data.matrix());
        EXPECT_EQ(f16_bits(weights), golden.inner) << golden.name;
    }
}

TEST(Exl3, GoldenProductsAreTheExactProducts) {
    const Golden file(data_path("exl3_decode.h5"));
    cpu::CpuBackend backend;
    for (const GoldenMatrix& golden : golden_matrices(file)) {
        for (const int64_t m : {1, 5}) {
            const std::vector<float> x =
                file.read<float>(fmt::format("{}/x{}", golden.name, m)).values;
            Guarded<float> y(m, golden.data.n(), 3);
            backend.linear(y.view(), {x.data(), m, golden.data.k()}, golden.data.matrix());
            EXPECT_TRUE(y.written());
            EXPECT_LE(relative_rms(y.values(), golden.data.exact(x)), kExl3RelativeRms)
                << golden.name << " m " << m;
            // The reference kernel rounds its inputs to fp16 (int8 for some rows of mul1): only a
            // sanity check that nothing is transposed.
            const std::vector<float> other =
                file.read<float>(fmt::format("{}/y{}", golden.name, m)).values;
            const std::vector<double> wide(other.begin(), other.end());
            EXPECT_LE(relative_rms(y.values(), wide), 0.02) << golden.name << " m " << m;
        }
    }
}

TEST(Exl3, DequantizeIsTheExactMatrixRoundedOnce) {
    Random random(11);
    for (const Codebook codebook : kCodebooks) {
        const MatrixData data = MatrixData::exl3(random, 150, 200, 3, codebook);
        std::vector<float> identity(200 * 200);
        for (size_t i = 0; i < 200; ++i) identity[i * 201] = 1.0f;
        const std::vector<double> exact = data.exact(identity);  // (k, n)
        std::vector<float> found(150 * 200);
        exl3_dequantize(found.data(), data.matrix());
        for (size_t n = 0; n < 150; ++n) {
            for (size_t k = 0; k < 200; ++k) {
                const double expected = exact[k * 150 + n];
                // Half a unit in the last place, and what fp64 itself loses in the test's own sum.
                EXPECT_NEAR(static_cast<double>(found[n * 200 + k]), expected,
                            std::abs(expected) * 0x1p-24 + 1e-14);
            }
        }
    }
}

}  // namespace
}  // namespace quadrille::test
