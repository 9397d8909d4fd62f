// SPDX-License-Identifier: Apache-2.0
// The quantizer against the reference's errors, and against inputs that hurt. Errors are measured
// on decoded matrices, which other tests compare with other implementations bit for bit.
#include "kernels/quantize/quantize_matrix.h"

#include "kernels/exl3.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/quantize_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace quadrille::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

QuantizeCase golden_case(const Golden& golden) {
    const auto weight = golden.read<float>("weight");  // (k, n)
    QuantizeCase made{.n = weight.shape[1], .k = weight.shape[0]};
    made.hessian = golden.read<float>("hessian").values;
    for (int64_t n = 0; n < made.n; ++n) {
        for (int64_t k = 0; k < made.k; ++k) {
            made.weights.push_back(weight.values[static_cast<size_t>(k * made.n + n)]);
        }
    }
    return made;
}

QuantizedMatrix stored(const Golden& golden, const std::string& group, TrellisCode code,
                       const QuantizeCase& made) {
    return {.n = made.n,
            .k = made.k,
            .n_padded = made.n,
            .k_padded = made.k,
            .code = code,
            .trellis = golden.read<uint16_t>(group + "/trellis").values,
            .suh = golden.read<F16>(group + "/suh").values,
            .svh = golden.read<F16>(group + "/svh").values};
}

TEST(QuantizeMatrix, ErrsNoMoreThanTheReferenceOnItsMatrices) {
    const Golden golden(data_path("exl3_quantized.h5"));
    const QuantizeCase made = golden_case(golden);
    const auto encoder = make_trellis_encoder("cpu", 2);
    double mean = 0;
    for (const int bits : {2, 3, 4}) {
        for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg}) {
            const std::string group = fmt::format("b{}_{}", bits, name(codebook));
            const TrellisCode code{bits, codebook};
            const auto result = quantize_case(*encoder, made, {.code = code, .threads = 2}, 0);
            const double ratio = hessian_error(made, result.matrix()) /
                                 hessian_error(made, stored(golden, group, code, made).matrix());
            EXPECT_LE(ratio, kQuantizerWorstRatio) << group;
            mean += ratio / 6;
        }
    }
    EXPECT_LE(mean, kQuantizerMeanRatio);
}

// The reference's proxy errors of 1024 x 1024; fewer outputs have the same error on average.
TEST(QuantizeMatrix, ErrsNoMoreThanTheReferenceOnMatricesDrawnAlike) {
    struct Anchor {
        TrellisCode code;
        double proxy_error;
    };
    constexpr std::array kAnchors = {Anchor{{1, Codebook::mcg}, 0.2335363169377647},
                                     Anchor{{2, Codebook::mcg}, 0.05721978831874138},
                                     Anchor{{2, Codebook::mul1}, 0.05712985477022325},
                                     Anchor{{6, Codebook::mul1}, 0.00025122338084081853}};
    const auto encoder = make_trellis_encoder("cpu", 2);
    const QuantizeCase made = anchor_case(1, 128, 1024);
    for (const Anchor& anchor : kAnchors) {
        const auto result = quantize_case(*encoder, made, {.code = anchor.code, .threads = 2}, 1);
        EXPECT_LE(result.proxy_error, kQuantizerAnchorRatio * anchor.proxy_error)
            << name(anchor.code.codebook) << " " << anchor.code.bits << " bits";
    }
}

// A matrix of any shape, channels with very different sizes.
QuantizeCase uneven_case(uint64_t seed, int64_t n, int64_t k) {
    Random random(seed);
    QuantizeCase made{.n = n, .k = k};
    made.weights = random.normals(n * k, 0.02f);
    std::vector<float> x = random.normals(64 * k);
    for (int64_t i = 0; i < std::ssize(x); ++i) {
        x[static_cast<size_t>(i)] *= std::exp(0.5f * static_cast<float>(i % k % 7 - 3));
    }
    made.hessian = gram(x, k);
    return made;
}

double relative_error(const QuantizedMatrix& result) {
    return result.squared_error / result.squared_weights;
}

TEST(QuantizeMatrix, ReportsTheErrorOfWhatItPacked) {
    const QuantizeCase made = uneven_case(5, 150, 200);
    const auto encoder = make_trellis_encoder("cpu", 2);
    const auto result = quantize_case(*encoder, made, {.code = {4, Codebook::mul1}}, 3);
    ASSERT_EQ(result.n_padded, 256);
    ASSERT_EQ(result.k_padded, 256);
    std::vector<float> decoded(made.weights.size());
    exl3_dequantize(decoded.data(), result.matrix());
    double error = 0;
    double whole = 0;
    for (size_t i = 0; i < decoded.size(); ++i) {
        error +=
            std::pow(static_cast<double>(decoded[i]) - static_cast<double>(made.weights[i]), 2);
        whole += std::pow(static_cast<double>(made.weights[i]), 2);
    }
    EXPECT_NEAR(result.squared_error / error, 1.0, 1e-4);
    EXPECT_NEAR(result.squared_weights / whole, 1.0, 1e-9);
    EXPECT_LT(error / whole, 0.02);
    for (int64_t n = made.n; n < result.n_padded; ++n) {
        EXPECT_EQ(result.svh[static_cast<size_t>(n)].bits, 0) << n;
    }
}

TEST(QuantizeMatrix, SweepsLowerTheError) {
    const QuantizeCase made = uneven_case(6, 128, 256);
    const auto encoder = make_trellis_encoder("cpu", 2);
    double last = 1;
    for (const int32_t sweeps : {0, 1, 3}) {
        const auto result = quantize_case(
            *encoder, made, {.code = {2, Codebook::mcg}, .sweeps = sweeps, .threads = 2}, 0);
        EXPECT_LT(result.proxy_error, last) << sweeps;
        last = result.proxy_error;
    }
}

TEST(QuantizeMatrix, ThreadsAndCompanyDoNotChangeTheBits) {
    const QuantizeCase made = uneven_case(7, 140, 256);
    const QuantizeCase other = uneven_case(8, 20, 100);
    const QuantizeOptions options{.code = {2, Codebook::mcg}};
    const auto expected = quantize_case(*make_trellis_encoder("cpu", 1), made, options, 11);
    const FactorOptions seed{.seed = 11, .threads = 3};
    const InputFactor factor = factor_inputs("inputs", made.hessian_view(), seed);
    const InputFactor other_factor = factor_inputs("inputs", other.hessian_view(), seed);
    const std::array<MatrixToQuantize, 3> matrices = {
        MatrixToQuantize{"a", other.weights_view(), &other_factor, 1},
        MatrixToQuantize{"b", made.weights_view(), &factor, 11},
        MatrixToQuantize{"c", made.weights_view(), &factor, 12}};
    const auto encoder = make_trellis_encoder("cpu", 3);
    const auto results =
        quantize_matrices(*encoder, matrices, {.code = {2, Codebook::mcg}, .threads = 3});
    EXPECT_EQ(results[1].trellis, expected.trellis);
    EXPECT_EQ(results[1].proxy_error, expected.proxy_error);
    EXPECT_EQ(results[1].squared_error, expected.squared_error);
    EXPECT_TRUE(std::equal(expected.suh.begin(), expected.suh.end(), results[1].suh.begin(),
                           [](F16 a, F16 b) { return a.bits == b.bits; }));
    EXPECT_NE(results[2].trellis, expected.trellis);
}

TEST(QuantizeMatrix, WeightsOfAnySizeKeepTheirPrecision) {
    const auto encoder = make_trellis_encoder("cpu", 2);
    for (const float size : {1e-7f, 1e-4f, 1.0f, 1e5f}) {
        QuantizeCase made = uneven_case(9, 128, 128);
        for (float& weight : made.weights) weight *= size;
        const auto result = quantize_case(*encoder, made, {.code = {4, Codebook::mcg}}, 0);
        EXPECT_LT(relative_error(result), 0.012) << size;
    }
}

TEST(QuantizeMatrix, ChannelsOfZerosStayZeros) {
    QuantizeCase made = uneven_case(10, 128, 256);
    for (int64_t n = 0; n < made.n; ++n) {
        for (int64_t k = 0; k < made.k; ++k) {
            if (n == 3 || k == 17) made.weights[static_cast<size_t>(n * made.k + k)] = 0;
        }
    }
    for (int64_t i = 0; i < made.k; ++i) {  // an input that is never active
        made.hessian[static_cast<size_t>(i * made.k + 40)] = 0;
        made.hessian[static_cast<size_t>(40 * made.k + i)] = 0;
    }
    const auto encoder = make_trellis_encoder("cpu", 2);
    const auto result = quantize_case(*encoder, made, {.code = {3, Codebook::mcg}}, 0);
    std::vector<float> decoded(made.weights.size());
    exl3_dequantize(decoded.data(), result.matrix());
    for (int64_t k = 0; k < made.k; ++k) {
        EXPECT_EQ(decoded[static_cast<size_t>(3 * made.k + k)], 0) << k;
    }
    EXPECT_LT(relative_error(result), 0.1);
}

TEST(QuantizeMatrix, AMatrixOfZerosHasNoError) {
    QuantizeCase made = uneven_case(11, 5, 130);
    std::fill(made.weights.begin(), made.weights.end(), 0.0f);
    const auto encoder = make_trellis_encoder("cpu", 2);
    const auto result = quantize_case(*encoder, made, {.code = {2, Codebook::mul1}}, 0);
    EXPECT_EQ(result.squared_error, 0);
    EXPECT_EQ(result.proxy_error, 0);
}

TEST(QuantizeMatrix, OneWeightOneOutputAndARankOneHessian) {
    const auto encoder = make_trellis_encoder("cpu", 2);
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {1, 129}, {129, 1}}) {
        QuantizeCase made = uneven_case(12, n, k);
        for (int64_t i = 0; i < k * k; ++i) made.hessian[static_cast<size_t>(i)] = 1e6f;
        const auto result = quantize_case(*encoder, made, {.code = {6, Codebook::mcg}}, 0);
        EXPECT_LT(hessian_error(made, result.matrix()), 0.01) << n << " " << k;
    }
}

TEST(QuantizeMatrix, WithoutAHessianTilesAreIndependent) {
    QuantizeCase made = uneven_case(13, 128, 128);
    const auto encoder = make_trellis_encoder("cpu", 2);
    const InputFactor plain = plain_inputs(made.k, {.seed = 1});
    const QuantizeOptions options{.code = {4, Codebook::mcg}};
    const auto expected =
        quantize_matrix(*encoder, {"matrix", made.weights_view(), &plain, 1}, options);
    EXPECT_LT(relative_error(expected), 0.0065);
    std::fill(made.hessian.begin(), made.hessian.end(), 0.0f);  // no row was ever seen
    EXPECT_EQ(quantize_case(*encoder, made, options, 1).trellis, expected.trellis);
}

TEST(QuantizeMatrix, NamesWhatIsNotFinite) {
    const auto encoder = make_trellis_encoder("cpu", 1);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
        QuantizeCase made = uneven_case(14, 20, 130);
        made.weights[130 * 7 + 5] = bad;
        expect_error(ErrorKind::input, {"matrix: weight (7, 5)"}, [&] {
            quantize_case(*encoder, made, {.code = {2, Codebook::mcg}}, 0);
        });
        made = uneven_case(14, 20, 130);
        made.hessian[130 * 9 + 2] = bad;
        expect_error(ErrorKind::input, {"inputs: Hessian element (9, 2)"}, [&] {
            quantize_case(*encoder, made, {.code = {2, Codebook::mcg}}, 0);
        });
    }
}

TEST(QuantizeMatrix, RefusesWhatDoesNotFit) {
    const auto encoder = make_trellis_encoder("cpu", 1);
    QuantizeCase made = uneven_case(15, 16, 128);
    for (const int bits : {0, 9}) {
        expect_error(ErrorKind::usage, {"matrix", "expected 1 to 8"}, [&] {
            quantize_case(*encoder, made, {.code = {bits, Codebook::mcg}}, 0);
        });
    }
    const InputFactor plain = plain_inputs(64, {});
    expect_error(ErrorKind::input, {"matrix: weights (16, 128), expected", "of 64"}, [&] {
        quantize_matrix(*encoder, {"matrix", made.weights_view(), &plain, 0},
                        {.code = {2, Codebook::mcg}});
    });
    made.hessian[5 * 128 + 5] = -1;
    expect_error(ErrorKind::input, {"inputs: Hessian diagonal element 5 is -1"}, [&] {
        quantize_case(*encoder, made, {.code = {2, Codebook::mcg}}, 0);
    });
}

}  // namespace
}  // namespace quadrille::test
