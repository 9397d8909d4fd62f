// SPDX-License-Identifier: Apache-2.0
// Row ops against fp64 formulas written out, between sentinels, one arithmetic per row.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/matrices.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace quadrille::test {
namespace {

constexpr std::array<int64_t, 6> kWidths = {1, 15, 16, 17, 300, 4096};

class RowOps : public testing::Test {
  protected:
    cpu::CpuBackend backend_;
    Random random_{7};
};

TEST_F(RowOps, EmbedCopiesRowsOfAnyDtype) {
    constexpr int64_t kWidth = 37;
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
        const MatrixData table = MatrixData::native(random_, 9, kWidth, dtype);
        // The exact product with unit vectors is the table.
        std::vector<float> identity(kWidth * kWidth);
        for (size_t i = 0; i < kWidth; ++i) identity[i * (kWidth + 1)] = 1.0f;
        const std::vector<double> columns = table.exact(identity);  // (k, n)
        const std::vector<int32_t> tokens = {8, 0, -1, 3, 3};
        for (const int32_t copies : {1, 4}) {
            Guarded<float> out(5, copies * kWidth, 2);
            backend_.embed(out.view(), tokens.data(), table.matrix(), copies);
            EXPECT_TRUE(out.written());
            for (int64_t r = 0; r < 5; ++r) {
                const int32_t token = tokens[static_cast<size_t>(r)];
                for (int64_t c = 0; c < copies * kWidth; ++c) {
                    const auto at = static_cast<size_t>(c % kWidth * 9 + std::max(token, 0));
                    const double expected = token < 0 ? 0.0 : columns[at];
                    EXPECT_EQ(static_cast<double>(out.view().row(r)[c]), expected);
                }
            }
        }
        std::vector<float> row(kWidth);
        for (const int32_t token : {-2, 9}) {
            EXPECT_THROW(backend_.embed({row.data(), 1, kWidth}, &token, table.matrix(), 1), Error);
        }
    }
}

TEST_F(RowOps, RmsNormIsTheFormula) {
    for (const int64_t n : kWidths) {
        const std::vector<float> weight = random_.normals(n);
        const std::vector<float> x = random_.normals(3 * n, 5.0f);
        const Guarded<float> in(3, n, x, 1);
        Guarded<float> out(3, n, 4);
        backend_.rms_norm(out.view(), in.view(), weight.data(), 1e-5f);
        EXPECT_TRUE(out.written());
        std::vector<float> expected;
        for (int64_t r = 0; r < 3; ++r) {
            double squares = 0;
            for (int64_t c = 0; c < n; ++c) squares += std::pow(double{in.view().row(r)[c]}, 2);
            const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
            for (int64_t c = 0; c < n; ++c) {
                expected.push_back(static_cast<float>(double{weight[static_cast<size_t>(c)]} *
                                                      double{in.view().row(r)[c]} * scale));
            }
        }
        EXPECT_TRUE(close(out.values(), expected, reduced(n))) << n;
        Guarded<float> in_place(3, n, x, 2);
        backend_.rms_norm(in_place.view(), in_place.view(), weight.data(), 1e-5f);
        EXPECT_TRUE(same(in_place.values(), out.values()));
    }
}

TEST_F(RowOps, NormsOfZeroRowsAreFinite) {
    const std::vector<float> one(64, 1.0f);
    std::vector<float> x(64, 0.0f);
    backend_.rms_norm({x.data(), 1, 64}, View<const float>(x.data(), 1, 64), one.data(), 1e-5f);
    EXPECT_TRUE(same(x, std::vector<float>(64, 0.0f)));
    std::fill(x.begin(), x.end(), 3.0f);
    backend_.layer_norm({x.data(), 1, 64}, View<const float>(x.data(), 1, 64), one.data(),
                        one.data(), 1e-6f);
    EXPECT_TRUE(same(x, one));
}

TEST_F(RowOps, LayerNormIsTheFormula) {
    for (const int64_t n : kWidths) {
        const std::vector<float> weight = random_.normals(n);
        const std::vector<float> bias = random_.normals(n);
        std::vector<float> x = random_.normals(2 * n);
        for (float& value : x) value += 10.0f;
        Guarded<float> out(2, n, 3);
        backend_.layer_norm(out.view(), {x.data(), 2, n}, weight.data(), bias.data(), 1e-6f);
        EXPECT_TRUE(out.written());
        std::vector<float> expected;
        for (int64_t r = 0; r < 2; ++r) {
            const auto row =
                std::span(x).subspan(static_cast<size_t>(r * n), static_cast<size_t>(n));
            double mean = 0;
            for (const float value : row) mean += double{value} / static_cast<double>(n);
            double variance = 0;
            for (const float value : row) {
                variance += std::pow(double{value} - mean, 2) / static_cast<double>(n);
            }
            for (size_t c = 0; c < row.size(); ++c) {
                expected.push_back(static_cast<float>(
                    (double{row[c]} - mean) / std::sqrt(variance + 1e-6) * double{weight[c]} +
                    double{bias[c]}));
            }
        }
        // The mean of 10 costs about three bits of the difference.
        EXPECT_TRUE(close(out.values(), expected, reduced(64 * n))) << n;
    }
}

TEST_F(RowOps, SwigluClampsTheGateFromAboveAndUpOnBothSides) {
    std::vector<float> gate = random_.normals(200, 8.0f);
    std::vector<float> up = random_.normals(200, 8.0f);
    gate[0] = 1e4f;
    gate[1] = -1e4f;
    gate[2] = -90.0f;
    up[3] = INFINITY;
    for (const float limit : {0.0f, 10.0f}) {
        Guarded<float> out(2, 100, 1);
        backend_.swiglu(out.view(), {gate.data(), 2, 100}, {up.data(), 2, 100}, limit);
        EXPECT_TRUE(out.written());
        std::vector<float> expected;
        for (size_t i = 0; i < 200; ++i) {
            double g = double{gate[i]};
            double u = double{up[i]};
            if (limit > 0) {
                g = std::min(g, double{limit});
                u = std::clamp(u, -double{limit}, double{limit});
            }
            expected.push_back(static_cast<float>(g / (1 + std::exp(-g)) * u));
        }
        EXPECT_TRUE(close(out.values(), expected, Tolerance{Tolerance::Class::rounded, 4}));
    }
}

TEST_F(RowOps, AddAndTreeSumKeepTheirOrder) {
    // Values that round differently in any other order.
    const std::vector<float> parts = {1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f};
    Guarded<float> out(1, 1);
    backend_.tree_sum(out.view(), parts.data(), 4, 1);
    EXPECT_EQ(out.values()[0], (1.0f + 0x1p-24f) + (0x1p-24f + 0x1p-24f));
    EXPECT_NE(out.values()[0], ((1.0f + 0x1p-24f) + 0x1p-24f) + 0x1p-24f);

    const std::vector<float> many = random_.normals(4 * 50);
    for (const int32_t count : {2, 4}) {
        Guarded<float> sum(3, 7, 2);
        backend_.tree_sum(sum.view(), many.data(), count, 50);
        EXPECT_TRUE(sum.written());
        for (size_t i = 0; i < 21; ++i) {
            const float low = many[i] + many[i + 50];
            const float expected = count == 2 ? low : low + (many[i + 100] + many[i + 150]);
            EXPECT_EQ(sum.values()[i], expected);
        }
    }
    EXPECT_THROW(backend_.tree_sum(out.view(), parts.data(), 3, 1), Error);

    Guarded<float> total(3, 7, std::span(many).first(21), 1);
    backend_.add(total.view(), {many.data() + 21, 3, 7});
    EXPECT_TRUE(total.intact());
    for (size_t i = 0; i < 21; ++i) EXPECT_EQ(total.values()[i], many[i] + many[i + 21]);
}

TEST_F(RowOps, CopyRowsLeavesSkippedRowsAlone) {
    const std::vector<float> in = random_.normals(4 * 5);
    const std::vector<int32_t> index = {3, -1, 0, 3};
    Guarded<float> out(4, 5, 2);
    backend_.copy_rows(out.view(), {in.data(), 4, 5}, index.data());
    EXPECT_TRUE(out.intact());
    for (int64_t r = 0; r < 4; ++r) {
        for (int64_t c = 0; c < 5; ++c) {
            const int32_t from = index[static_cast<size_t>(r)];
            const float expected =
                from < 0 ? untouched<float>() : in[static_cast<size_t>(from * 5 + c)];
            EXPECT_TRUE(same_bits(out.view().row(r)[c], expected));
        }
    }
    const int32_t outside = 4;
    EXPECT_THROW(backend_.copy_rows(out.view().slice_rows(0, 1), {in.data(), 4, 5}, &outside),
                 Error);
}

TEST_F(RowOps, OneArithmeticPerRow) {
    constexpr int64_t kPool = 19;
    constexpr int64_t kWidth = 333;
    const std::vector<float> a = random_.normals(kPool * kWidth);
    const std::vector<float> b = random_.normals(kPool * kWidth);
    const std::vector<float> weight = random_.normals(kWidth);
    const auto with = [&](const auto& op) {
        expect_one_arithmetic_per_row(
            kPool, kWidth, [&](std::span<const int64_t> rows, int64_t gap) {
                const Guarded<float> x(std::ssize(rows), kWidth,
                                       gather_rows<float>(a, kWidth, rows), gap);
                const Guarded<float> y(std::ssize(rows), kWidth,
                                       gather_rows<float>(b, kWidth, rows), gap + 1);
                Guarded<float> out(std::ssize(rows), kWidth, gap);
                op(out.view(), x.view(), y.view());
                EXPECT_TRUE(out.written());
                return out.values();
            });
    };
    using In = View<const float>;
    with([&](View<float> out, In x, In) { backend_.rms_norm(out, x, weight.data(), 1e-5f); });
    with([&](View<float> out, In x, In) {
        backend_.layer_norm(out, x, weight.data(), weight.data(), 1e-5f);
    });
    with([&](View<float> out, In x, In y) { backend_.swiglu(out, x, y, 10.0f); });
}

}  // namespace
}  // namespace quadrille::test
