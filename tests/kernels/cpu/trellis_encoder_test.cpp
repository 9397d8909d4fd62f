// SPDX-License-Identifier: Apache-2.0
// The CPU's search for EXL3 codes: paths that bite their tail, codes found again, and the same bits
// by every instruction set and number of threads.
#include "kernels/trellis_encoder.h"

#include "kernels/cpu/paths.h"
#include "kernels/exl3.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace quadrille::test {
namespace {

constexpr std::array kCodebooks = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};
constexpr int64_t kTileSize = exl3::kTileSize;

std::vector<uint16_t> encode(const std::string& encoder, int32_t threads,
                             const std::vector<float>& tiles, TrellisCode code) {
    std::vector<uint16_t> states(tiles.size());
    make_trellis_encoder(encoder, threads)
        ->encode_tiles(states.data(), tiles.data(), std::ssize(tiles) / kTileSize, code);
    return states;
}

TEST(TrellisEncoder, StatesContinueEachOtherRoundTheTile) {
    Random random(1);
    for (int bits = 1; bits <= 8; ++bits) {
        const std::vector<float> tiles = random.normals(3 * kTileSize);
        const auto states = encode("cpu", 1, tiles, {bits, Codebook::mcg});
        const int nodes = 65536 >> bits;
        for (size_t i = 0; i < states.size(); ++i) {
            const size_t tile = i / kTileSize * kTileSize;
            const int next = states[tile + (i + 1) % kTileSize];
            ASSERT_EQ(states[i] % nodes, next >> bits) << bits << " bits, position " << i;
        }
    }
}

TEST(TrellisEncoder, FindsValuesThatCodesStandFor) {
    Random random(2);
    for (const Codebook codebook : kCodebooks) {
        for (int bits = 2; bits <= 8; ++bits) {
            const auto words = random.words(16 * bits);
            std::vector<uint32_t> tile(words.size() / 2);
            for (size_t i = 0; i < tile.size(); ++i) {
                tile[i] = static_cast<uint32_t>(words[2 * i]) << 16 | words[2 * i + 1];
            }
            std::vector<float> values;
            for (int t = 0; t < kTileSize; ++t) {
                values.push_back(
                    to_float(exl3::decode(codebook, exl3::tile_state(tile.data(), bits, t))));
            }
            const auto states = encode("cpu", 1, values, {bits, codebook});
            for (size_t t = 0; t < values.size(); ++t) {
                ASSERT_EQ(to_float(exl3::decode(codebook, states[t])), values[t])
                    << name(codebook) << " " << bits << " bits, position " << t;
            }
        }
    }
}

TEST(TrellisEncoder, EveryInstructionSetGivesTheSameBits) {
    Random random(3);
    for (int bits = 1; bits <= 8; ++bits) {
        const Codebook codebook = kCodebooks[static_cast<size_t>(bits % 3)];
        std::vector<float> tile = random.normals(kTileSize, 1.2f);
        tile[7] = 1e20f;  // values that no code reaches
        tile[200] = -1e20f;
        const auto expected = encode("cpu-plain", 1, tile, {bits, codebook});
        for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
            if (!cpu::has_isa(isa)) continue;
            const auto encoder = fmt::format("cpu-{}", cpu::name(isa));
            EXPECT_EQ(encode(encoder, 1, tile, {bits, codebook}), expected)
                << encoder << ", " << bits << " bits";
        }
    }
}

TEST(TrellisEncoder, ThreadsDoNotChangeTheStates) {
    Random random(4);
    const std::vector<float> tiles = random.normals(37 * kTileSize);
    const auto expected = encode("cpu", 1, tiles, {3, Codebook::mul1});
    for (const int32_t threads : {2, 5, 64}) {
        EXPECT_EQ(encode("cpu", threads, tiles, {3, Codebook::mul1}), expected) << threads;
    }
}

TEST(TrellisEncoder, RefusesUnknownEncoders) {
    expect_error(ErrorKind::usage, {"encoder 'tpu'", "expected cpu or cuda"},
                 [] { make_trellis_encoder("tpu", 1); });
}

}  // namespace
}  // namespace quadrille::test
