// SPDX-License-Identifier: Apache-2.0
// The GPU's search for EXL3 codes against the CPU's: the same bits, tiles and whole matrices.
#include "kernels/trellis_encoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/quantize_case.h"

#include <gtest/gtest.h>

#include <array>

namespace quadrille::test {
namespace {

constexpr std::array kCodebooks = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};

class CudaTrellis : public testing::Test {
  protected:
    std::unique_ptr<TrellisEncoder> cpu_ = make_trellis_encoder("cpu", 8);
    std::unique_ptr<TrellisEncoder> gpu_ = make_trellis_encoder("cuda", 1);
};

TEST_F(CudaTrellis, FindsTheStatesOfTheCpu) {
    Random random(1);
    constexpr int64_t kTiles = 300;  // more than a GPU has multiprocessors
    std::vector<float> tiles = random.normals(kTiles * 256, 1.2f);
    tiles[5] = 1e20f;
    tiles[700] = -1e20f;
    for (int bits = 1; bits <= 8; ++bits) {
        const TrellisCode code{bits, kCodebooks[static_cast<size_t>(bits % 3)]};
        std::vector<uint16_t> expected(tiles.size());
        std::vector<uint16_t> states(tiles.size());
        cpu_->encode_tiles(expected.data(), tiles.data(), kTiles, code);
        gpu_->encode_tiles(states.data(), tiles.data(), kTiles, code);
        EXPECT_EQ(states, expected) << bits << " bits";
    }
}

TEST_F(CudaTrellis, QuantizesToTheBitsOfTheCpu) {
    const QuantizeCase first = anchor_case(2, 150, 200);
    const QuantizeCase second = anchor_case(3, 128, 256);
    const FactorOptions seed{.seed = 4, .threads = 8};
    const InputFactor first_factor = factor_inputs("a", first.hessian_view(), seed);
    const InputFactor second_factor = factor_inputs("b", second.hessian_view(), seed);
    const InputFactor plain = plain_inputs(256, seed);
    const std::array<MatrixToQuantize, 4> matrices = {
        MatrixToQuantize{"a", first.weights_view(), &first_factor, 1},
        MatrixToQuantize{"b", second.weights_view(), &second_factor, 2},
        MatrixToQuantize{"c", second.weights_view(), &second_factor, 3},
        MatrixToQuantize{"d", second.weights_view(), &plain, 4}};
    for (int bits = 1; bits <= 8; ++bits) {
        const QuantizeOptions options{.code = {bits, kCodebooks[static_cast<size_t>(bits % 3)]},
                                      .sweeps = 1 + bits % 2,
                                      .threads = 8};
        const auto expected = quantize_matrices(*cpu_, matrices, options);
        const auto results = quantize_matrices(*gpu_, matrices, options);
        for (size_t i = 0; i < matrices.size(); ++i) {
            EXPECT_EQ(results[i].trellis, expected[i].trellis) << bits << " bits, matrix " << i;
            EXPECT_EQ(results[i].scale, expected[i].scale) << bits << " bits, matrix " << i;
            EXPECT_EQ(results[i].proxy_error, expected[i].proxy_error)
                << bits << " bits, matrix " << i;
        }
    }
}

TEST_F(CudaTrellis, RefusesAGpuThatIsNotThere) {
    expect_error(ErrorKind::device, {"encoder 'cuda': GPU 99 of"},
                 [] { make_trellis_encoder("cuda", 1, 99); });
}

}  // namespace
}  // namespace quadrille::test
