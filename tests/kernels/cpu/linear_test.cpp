// SPDX-License-Identifier: Apache-2.0
// Products: exact within fp32, one arithmetic per row, and the same bits whatever part of the
// matrix a rank holds.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/matrices.h"
#include "tests/support/op_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace quadrille::test {
namespace {

// Shapes around tiles, blocks of 128 and lanes, with padding on one side, both or none.
struct Shape {
    int64_t n;
    int64_t k;
};
constexpr std::array kShapes = {Shape{1, 1},     Shape{7, 33},    Shape{128, 128}, Shape{192, 448},
                                Shape{130, 127}, Shape{256, 513}, Shape{3, 1000}};

struct Kind {
    int bits;  // 0: native
    Codebook codebook;
    Dtype dtype;
};
constexpr std::array kKinds = {
    Kind{0, Codebook::mcg, Dtype::f32},        Kind{0, Codebook::mcg, Dtype::f16},
    Kind{0, Codebook::mcg, Dtype::bf16},       Kind{1, Codebook::mul1, Dtype::f32},
    Kind{2, Codebook::mcg, Dtype::f32},        Kind{3, Codebook::three_inst, Dtype::f32},
    Kind{4, Codebook::mul1, Dtype::f32},       Kind{5, Codebook::mcg, Dtype::f32},
    Kind{6, Codebook::mul1, Dtype::f32},       Kind{7, Codebook::mcg, Dtype::f32},
    Kind{8, Codebook::three_inst, Dtype::f32},
};

MatrixData make(Random& random, const Kind& kind, int64_t n, int64_t k) {
    return kind.bits > 0 ? MatrixData::exl3(random, n, k, kind.bits, kind.codebook)
                         : MatrixData::native(random, n, k, kind.dtype);
}

std::string text(const Kind& kind, const Shape& shape) {
    const std::string what = kind.bits > 0 ? fmt::format("EXL3 {} bits codebook {}", kind.bits,
                                                         static_cast<int>(kind.codebook))
                                           : std::string(name(kind.dtype));
    return fmt::format("{} n {} k {}", what, shape.n, shape.k);
}

// Runs linear between sentinels; the gap behind input rows holds NaNs.
std::vector<float> run(cpu::CpuBackend& backend, const Matrix& matrix, std::span<const float> x,
                       int64_t gap = 3) {
    const int64_t m = std::ssize(x) / matrix.k;
    const Guarded<float> in(m, matrix.k, x, gap);
    Guarded<float> out(m, matrix.n, gap);
    backend.linear(out.view(), in.view(), matrix);
    EXPECT_TRUE(out.written());
    EXPECT_TRUE(in.intact());
    return out.values();
}

class Linear : public testing::Test {
  protected:
    cpu::CpuBackend backend_;
    Random random_{42};
};

TEST_F(Linear, IsTheExactProduct) {
    for (const Kind& kind : kKinds) {
        for (const Shape& shape : kShapes) {
            MatrixData data = make(random_, kind, shape.n, shape.k);
            if (shape.n % 2 == 0) data.add_bias(random_);
            for (const int64_t m : {1, 5}) {
                const std::vector<float> x = random_.normals(m * shape.k);
                const std::vector<double> exact = data.exact(x);
                const std::vector<float> rounded(exact.begin(), exact.end());
                const std::vector<float> found = run(backend_, data.matrix(), x);
                EXPECT_TRUE(close(found, rounded, reduced(shape.k + 256))) << text(kind, shape);
                if (exact.size() > 100) {
                    EXPECT_LE(relative_rms(found, exact), kExl3RelativeRms) << text(kind, shape);
                }
            }
        }
    }
}

TEST_F(Linear, OneArithmeticPerRow) {
    constexpr int64_t kPool = 20;
    for (const Kind& kind : kKinds) {
        const Shape shape{192, 448};
        MatrixData data = make(random_, kind, shape.n, shape.k);
        data.add_bias(random_);
        data.cut_segments(4);
        const std::vector<float> pool = random_.normals(kPool * shape.k);
        SCOPED_TRACE(text(kind, shape));
        expect_one_arithmetic_per_row(
            kPool, shape.n, [&](std::span<const int64_t> rows, int64_t gap) {
                return run(backend_, data.matrix(), gather_rows<float>(pool, shape.k, rows), gap);
            });
    }
}

TEST_F(Linear, SlicesOfTheOutputsHaveTheBitsOfTheWhole) {
    for (const Kind& kind : kKinds) {
        const Shape shape{500, 320};
        MatrixData data = make(random_, kind, shape.n, shape.k);
        data.add_bias(random_);
        const std::vector<float> x = random_.normals(3 * shape.k);
        const std::vector<float> whole = run(backend_, data.matrix(), x);
        for (const auto& [first, count] :
             {std::pair<int64_t, int64_t>{0, 128}, {128, 256}, {384, 116}, {256, 244}}) {
            const MatrixData part = data.outputs(first, count);
            const std::vector<float> found = run(backend_, part.matrix(), x);
            std::vector<float> expected;
            for (int64_t r = 0; r < 3; ++r) {
                const auto from = whole.begin() + r * shape.n + first;
                expected.insert(expected.end(), from, from + count);
            }
            EXPECT_TRUE(same(found, expected)) << text(kind, shape) << " from " << first;
        }
    }
}

// What 2 and 4 ranks compute: each holds some segments as a matrix of its own; the partial sums
// meet in the same balanced tree.
TEST_F(Linear, SegmentsAreTheTreeOfSlices) {
    for (const Kind& kind : kKinds) {
        for (const int64_t k : {int64_t{448}, int64_t{1024}, int64_t{700}, int64_t{200}}) {
            const Shape shape{192, k};
            constexpr int64_t kRows = 3;
            MatrixData data = make(random_, kind, shape.n, shape.k);
            data.add_bias(random_);
            data.cut_segments(4);
            const Matrix whole = data.matrix();
            const std::vector<float> x = random_.normals(kRows * shape.k);
            std::array<std::vector<float>, 4> parts;
            for (size_t s = 0; s < 4; ++s) {
                const int64_t first = whole.segment[s];
                const int64_t count = whole.segment[s + 1] - first;
                parts[s].assign(static_cast<size_t>(kRows * shape.n), 0.0f);
                if (count == 0) continue;  // fewer blocks than segments
                std::vector<float> columns;
                for (int64_t r = 0; r < kRows; ++r) {
                    const auto from = x.begin() + r * k + first;
                    columns.insert(columns.end(), from, from + count);
                }
                parts[s] = run(backend_, data.inputs(first, count).matrix(), columns);
            }
            std::vector<float> expected;
            for (size_t i = 0; i < parts[0].size(); ++i) {
                const float sum = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
                expected.push_back(sum + whole.bias[i % static_cast<size_t>(shape.n)]);
            }
            EXPECT_TRUE(same(run(backend_, whole, x), expected)) << text(kind, shape);
        }
    }
}

TEST_F(Linear, TakesNoRowsAndPropagatesNan) {
    const MatrixData data = MatrixData::exl3(random_, 128, 128, 4, Codebook::mul1);
    EXPECT_TRUE(run(backend_, data.matrix(), {}).empty());
    std::vector<float> x = random_.normals(2 * 128);
    const std::vector<float> clean = run(backend_, data.matrix(), x);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> found = run(backend_, data.matrix(), x);
    EXPECT_TRUE(std::isnan(found[7]));
    // The other row is not touched by it.
    EXPECT_TRUE(same(std::span(found).subspan(128), std::span(clean).subspan(128)));
}

TEST_F(Linear, RefusesShapesThatDoNotFit) {
    MatrixData data = MatrixData::exl3(random_, 128, 256, 4, Codebook::mul1);
    std::vector<float> x(256);
    std::vector<float> y(128);
    const View<const float> in(x.data(), 1, 256);
    EXPECT_THROW(backend_.linear({y.data(), 1, 127}, in, data.matrix()), Error);
    EXPECT_THROW(backend_.linear({y.data(), 1, 128}, in.slice_cols(0, 128), data.matrix()), Error);
    Matrix cut = data.matrix();
    cut.segments = 2;
    cut.segment = {0, 64, 256};
    EXPECT_THROW(backend_.linear({y.data(), 1, 128}, in, cut), Error);
    cut.segment = {0, 128, 200};
    EXPECT_THROW(backend_.linear({y.data(), 1, 128}, in, cut), Error);
}

}  // namespace
}  // namespace quadrille::test
