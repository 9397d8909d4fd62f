// SPDX-License-Identifier: Apache-2.0
// linear on a GPU against the CPU: hostile shapes between sentinels, and the promises of
// docs/design.md §6: the same bits for a row in any company, for a slice of the outputs, and for
// segments held apart and summed in the tree.
#include "kernels/cuda/exl3/exl3_launch.h"
#include "kernels/cuda/exl3/exl3_plan.h"
#include "tests/support/on_device.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

namespace quadrille::test {
namespace {

struct Shape {
    int64_t n;
    int64_t k;
};
constexpr std::array kShapes = {Shape{1, 1},     Shape{7, 33},     Shape{128, 128},
                                Shape{192, 448}, Shape{130, 127},  Shape{256, 513},
                                Shape{3, 1000},  Shape{384, 1408}, Shape{520, 2304}};

struct Kind {
    int bits;  // 0: native
    Codebook codebook;
    Dtype dtype;

    // One input alone has the same rotated magnitude in all channels: its errors add up.
    double allowed(int64_t k) const {
        if (bits > 0) return k < 32 ? 6 * kGpuExl3RelativeRms : kGpuExl3RelativeRms;
        return dtype == Dtype::bf16 ? kGpuBf16RelativeRms : kGpuTf32RelativeRms;
    }
    std::string text() const {
        return bits > 0 ? fmt::format("EXL3 {} bits codebook {}", bits, static_cast<int>(codebook))
                        : std::string(name(dtype));
    }
};

std::vector<Kind> kinds() {
    std::vector<Kind> all = {{0, Codebook::mcg, Dtype::f32},
                             {0, Codebook::mcg, Dtype::f16},
                             {0, Codebook::mcg, Dtype::bf16}};
    for (int bits = 1; bits <= 8; ++bits) {
        for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg, Codebook::mul1}) {
            all.push_back({bits, codebook, Dtype::f32});
        }
    }
    return all;
}

MatrixData make(Random& random, const Kind& kind, int64_t n, int64_t k) {
    return kind.bits > 0 ? MatrixData::exl3(random, n, k, kind.bits, kind.codebook)
                         : MatrixData::native(random, n, k, kind.dtype);
}

std::vector<float> run(Backend& backend, const Matrix& matrix, std::span<const float> x,
                       int64_t gap = 3) {
    const int64_t m = std::ssize(x) / matrix.k;
    OnDevice<float> in(backend, m, matrix.k, x, gap);
    OnDevice<float> out(backend, m, matrix.n, gap);
    backend.linear(out.view(), in.view(), matrix);
    return out.result();
}

class CudaProducts : public testing::Test {
  protected:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{42};
};

TEST_F(CudaProducts, MatchTheCpu) {
    for (const Kind& kind : kinds()) {
        for (const Shape& shape : kShapes) {
            MatrixData data = make(random_, kind, shape.n, shape.k);
            if (shape.n % 2 == 0) data.add_bias(random_);
            if (shape.n % 4 == 0) data.cut_segments(shape.n % 8 == 0 ? 4 : 2);
            Uploads uploads(*gpu_);
            const Matrix matrix = uploads.matrix(data.matrix());
            for (const int64_t m : {1, 5, 17, 70, 130}) {
                const std::vector<float> x = random_.normals(m * shape.k);
                EXPECT_TRUE(near_enough(run(*gpu_, matrix, x), run(*cpu_, data.matrix(), x),
                                        kind.allowed(shape.k)))
                    << kind.text() << " n " << shape.n << " k " << shape.k << " m " << m;
            }
        }
    }
}

// Inputs are rotated before they become fp16: one beyond its range is spread over 128.
TEST_F(CudaProducts, InputsBeyondTheRangeOfFp16) {
    const Kind kind{4, Codebook::mcg, Dtype::f32};
    const Shape shape{384, 1408};
    const MatrixData data = make(random_, kind, shape.n, shape.k);
    Uploads uploads(*gpu_);
    const Matrix matrix = uploads.matrix(data.matrix());
    for (const int64_t m : {3, 16, 40}) {
        std::vector<float> x = random_.normals(m * shape.k);
        for (int64_t r = 0; r < m; ++r) {
            x[static_cast<size_t>(r * shape.k + r * 37 % shape.k)] = r % 2 == 0 ? 3e5f : -2e5f;
        }
        // The outlier's errors add up, as those of one input alone.
        EXPECT_TRUE(near_enough(run(*gpu_, matrix, x, 4), run(*cpu_, data.matrix(), x, 4),
                                6 * kGpuExl3RelativeRms))
            << "m " << m;
    }
}

TEST_F(CudaProducts, OneArithmeticPerRow) {
    constexpr int64_t kPool = 160;
    for (const Kind& kind : kinds()) {
        // Wide enough that few and many rows are cut differently.
        for (const Shape& shape : {Shape{192, 448}, Shape{1152, 2176}}) {
            if (shape.n > 1000 && kind.bits > 0 && kind.bits % 2 == 1) continue;
            MatrixData data = make(random_, kind, shape.n, shape.k);
            data.add_bias(random_);
            data.cut_segments(4);
            Uploads uploads(*gpu_);
            const Matrix matrix = uploads.matrix(data.matrix());
            const std::vector<float> pool = random_.normals(kPool * shape.k);
            SCOPED_TRACE(kind.text());
            const std::vector<float> whole = run(*gpu_, matrix, pool, 0);
            for (const int64_t m : {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 145}) {
                std::vector<int64_t> rows = random_.permutation(kPool);
                rows.resize(static_cast<size_t>(m));
                const auto part = run(*gpu_, matrix, gather_rows<float>(pool, shape.k, rows), 4);
                EXPECT_TRUE(same(part, gather_rows<float>(whole, shape.n, rows))) << "m " << m;
            }
        }
    }
}

// Rows [first, first + count) of x.
std::vector<float> rows_of(const std::vector<float>& x, int64_t cols, int64_t first,
                           int64_t count) {
    const auto from = x.begin() + first * cols;
    return {from, from + count * cols};
}

// The product of all rows, not more than 57 at a time.
std::vector<float> few_at_a_time(Backend& backend, const Matrix& matrix,
                                 const std::vector<float>& x) {
    std::vector<float> out;
    const int64_t m = std::ssize(x) / matrix.k;
    for (int64_t first = 0; first < m; first += 57) {
        const auto part =
            run(backend, matrix, rows_of(x, matrix.k, first, std::min<int64_t>(57, m - first)));
        out.insert(out.end(), part.begin(), part.end());
    }
    return out;
}

// Tiles of 16 and 128 rows and 256 columns, whole and cut short on every side; thread blocks that
// take all inputs and some that share them (Exl3Plan.ShapesOfTestsTakeLargeTiles).
TEST_F(CudaProducts, ManyRowsHaveTheBitsOfOne) {
    struct Case {
        Shape shape;
        int32_t segments;
        Kind kind;
    };
    constexpr int64_t kPool = 513;
    for (const Case& one : {Case{{12700, 384}, 1, {2, Codebook::mcg, Dtype::f32}},
                            Case{{2600, 2000}, 1, {5, Codebook::three_inst, Dtype::f32}},
                            Case{{2150, 1664}, 2, {4, Codebook::mul1, Dtype::f32}},
                            Case{{4200, 1408}, 4, {2, Codebook::mul1, Dtype::f32}},
                            Case{{20040, 640}, 4, {3, Codebook::mcg, Dtype::f32}}}) {
        const auto [n, k] = one.shape;
        MatrixData data = make(random_, one.kind, n, k);
        if (one.segments != 2) data.add_bias(random_);
        data.cut_segments(one.segments);
        Uploads uploads(*gpu_);
        const Matrix matrix = uploads.matrix(data.matrix());
        const std::vector<float> pool = random_.normals(kPool * k);
        const std::vector<float> expected = few_at_a_time(*gpu_, matrix, pool);
        SCOPED_TRACE(fmt::format("n {} k {} segments {}", n, k, one.segments));
        for (const int64_t r : {int64_t{0}, int64_t{31}, int64_t{200}, kPool - 1}) {
            EXPECT_TRUE(
                same(run(*gpu_, matrix, rows_of(pool, k, r, 1)), rows_of(expected, n, r, 1)))
                << "row " << r;
        }
        for (const int64_t m : {9, 16, 17, 30, 64, 65, 97, 127, 128, 129, 255, 257, 512, 513}) {
            const auto found = run(*gpu_, matrix, rows_of(pool, k, kPool - m, m), m % 3 * 4);
            EXPECT_TRUE(same(found, rows_of(expected, n, kPool - m, m))) << "m " << m;
        }
    }
}

// Thread blocks of 64 and 128 columns, of 16 to 128 rows, whole and cut short; bf16 that is copied
// 16 bytes at a time, and that is not (an odd number of inputs, segments that begin anywhere).
TEST_F(CudaProducts, NativeRowsHaveTheBitsOfOneInTilesOfAnyShape) {
    struct Case {
        Shape shape;
        std::vector<int64_t> segments;
        std::vector<int64_t> rows;
    };
    for (const Case& one :
         {Case{{2300, 328}, {0, 328}, {9, 16, 17, 31, 33, 64, 200}},
          Case{{2117, 1000}, {0, 64, 448, 448, 1000}, {12, 30, 65, 130}},
          Case{{2117, 264}, {0, 96, 264}, {30, 65}}, Case{{4223, 200}, {0, 72, 200}, {16, 40}},
          Case{{2200, 77}, {0, 77}, {16, 70}}, Case{{9000, 136}, {0, 136}, {57, 128, 300}},
          Case{{130, 456}, {0, 456}, {256, 300, 1200}},
          Case{{66, 328}, {0, 128, 328}, {255, 257}}}) {
        const auto [n, k] = one.shape;
        MatrixData data = MatrixData::native(random_, n, k, Dtype::bf16);
        data.add_bias(random_);
        Uploads uploads(*gpu_);
        Matrix matrix = uploads.matrix(data.matrix());
        matrix.segments = static_cast<int32_t>(std::ssize(one.segments)) - 1;
        std::copy(one.segments.begin(), one.segments.end(), matrix.segment.begin());
        const std::vector<float> pool = random_.normals(one.rows.back() * k);
        std::vector<float> expected;
        for (int64_t r = 0; r < one.rows.back(); r += 8) {
            const int64_t count = std::min<int64_t>(8, one.rows.back() - r);
            const auto part = run(*gpu_, matrix, rows_of(pool, k, r, count));
            expected.insert(expected.end(), part.begin(), part.end());
        }
        for (const int64_t m : one.rows) {
            const auto found = run(*gpu_, matrix, rows_of(pool, k, one.rows.back() - m, m), m % 3);
            EXPECT_TRUE(same(found, rows_of(expected, n, one.rows.back() - m, m)))
                << "n " << n << " k " << k << " m " << m;
        }
    }
}

// So many columns are tiled whatever the rows; few of the same matrix are streamed.
TEST_F(CudaProducts, AHeadHasTheBitsOfItsColumnsAlone) {
    constexpr int64_t kOutputs = 65700;
    const MatrixData data = MatrixData::native(random_, kOutputs, 328, Dtype::bf16);
    const MatrixData last = data.outputs(kOutputs - 128, 128);
    Uploads uploads(*gpu_);
    const Matrix whole = uploads.matrix(data.matrix()), part = uploads.matrix(last.matrix());
    for (const int64_t m : {1, 3, 8}) {
        const std::vector<float> x = random_.normals(m * 328);
        const auto all = run(*gpu_, whole, x), few = run(*gpu_, part, x);
        for (int64_t r = 0; r < m; ++r) {
            EXPECT_TRUE(std::equal(few.begin() + r * 128, few.begin() + (r + 1) * 128,
                                   all.begin() + (r + 1) * kOutputs - 128));
        }
    }
}

TEST_F(CudaProducts, ManyRowsOfEveryKind) {
    for (const Kind& kind : kinds()) {
        const Shape shape{4200, 640};
        MatrixData data = make(random_, kind, shape.n, shape.k);
        data.cut_segments(kind.bits % 2 == 0 ? 1 : 4);
        Uploads uploads(*gpu_);
        const Matrix matrix = uploads.matrix(data.matrix());
        const std::vector<float> x = random_.normals(300 * shape.k);
        EXPECT_TRUE(same(run(*gpu_, matrix, x), few_at_a_time(*gpu_, matrix, x))) << kind.text();
    }
}

TEST_F(CudaProducts, SlicesOfTheOutputsHaveTheBitsOfTheWhole) {
    for (const Kind& kind : kinds()) {
        const Shape shape{500, 1408};
        MatrixData data = make(random_, kind, shape.n, shape.k);
        data.add_bias(random_);
        for (const int64_t m : {3, 40, 140}) {
            const std::vector<float> x = random_.normals(m * shape.k);
            Uploads uploads(*gpu_);
            const auto whole = run(*gpu_, uploads.matrix(data.matrix()), x);
            for (const auto& [first, count] :
                 {std::pair<int64_t, int64_t>{0, 128}, {128, 256}, {384, 116}}) {
                const MatrixData part = data.outputs(first, count);
                const auto found = run(*gpu_, uploads.matrix(part.matrix()), x);
                std::vector<float> expected;
                for (int64_t r = 0; r < m; ++r) {
                    const auto from = whole.begin() + r * shape.n + first;
                    expected.insert(expected.end(), from, from + count);
                }
                EXPECT_TRUE(same(found, expected)) << kind.text() << " from " << first;
            }
        }
    }
}

TEST_F(CudaProducts, RanksGiveTheBitsOfTheWhole) {
    for (const Kind& kind : kinds()) {
        const int64_t k = 1664;  // 13 blocks: segments of 4, 3, 3, 3
        MatrixData data = make(random_, kind, 256, k);
        data.cut_segments(4);
        const Matrix whole = data.matrix();
        for (const int64_t m : {2, 24, 80, 300}) {
            const std::vector<float> x = random_.normals(m * k);
            Uploads uploads(*gpu_);
            const auto expected = run(*gpu_, uploads.matrix(whole), x);
            for (const int32_t ranks : {2, 4}) {
                std::vector<float> parts;
                for (int32_t rank = 0; rank < ranks; ++rank) {
                    const auto at = static_cast<size_t>(rank * 4 / ranks);
                    const int64_t first = whole.segment[at];
                    const int64_t width =
                        whole.segment[at + static_cast<size_t>(4 / ranks)] - first;
                    MatrixData part = data.inputs(first, width);
                    part.cut_segments(4 / ranks);
                    std::vector<float> slice;
                    for (int64_t r = 0; r < m; ++r) {
                        const auto from = x.begin() + r * k + first;
                        slice.insert(slice.end(), from, from + width);
                    }
                    const auto sums = run(*gpu_, uploads.matrix(part.matrix()), slice);
                    parts.insert(parts.end(), sums.begin(), sums.end());
                }
                OnDevice<float> total(*gpu_, m, 256);
                gpu_->tree_sum(total.view(), uploads.array(parts), ranks, m * 256);
                EXPECT_TRUE(same(total.result(), expected)) << kind.text() << " ranks " << ranks;
            }
        }
    }
}

TEST_F(CudaProducts, RepeatedRunsHaveTheSameBits) {
    for (const Kind& kind :
         {Kind{4, Codebook::mcg, Dtype::f32}, Kind{6, Codebook::mul1, Dtype::f32},
          Kind{0, Codebook::mcg, Dtype::bf16}}) {
        const MatrixData data = make(random_, kind, 1024, 4096);
        Uploads uploads(*gpu_);
        const Matrix matrix = uploads.matrix(data.matrix());
        for (const int64_t m : {1, 8, 20, 64, 200}) {
            const std::vector<float> x = random_.normals(m * 4096);
            const auto first = run(*gpu_, matrix, x);
            for (int i = 0; i < 5; ++i) EXPECT_TRUE(same(run(*gpu_, matrix, x), first));
        }
    }
}

// Products of one call against the same one by one: kinds, inputs and sizes that join launches, or
// share fragments, and that do not, more of them than a launch takes.
TEST_F(CudaProducts, AGroupGivesTheBitsOfEach) {
    const std::array<int64_t, 6> outputs = {64, 1, 520, 128, 1152, 33};
    for (const int64_t k : {128, 448, 1408}) {
        for (const int64_t m : {1, 3, 8, 9, 16, 17, 40, 300, 1100}) {
            Uploads uploads(*gpu_);
            std::vector<MatrixData> data;
            std::vector<Matrix> matrices;
            for (size_t i = 0; i < 20; ++i) {
                const std::vector<Kind> all = kinds();
                const Kind& kind = i < 12 ? all[2] : all[i % all.size()];
                data.push_back(make(random_, kind, outputs[i % outputs.size()], k));
                if (i % 3 == 0) data.back().add_bias(random_);
                matrices.push_back(uploads.matrix(data.back().matrix()));
            }
            const std::vector<float> x = random_.normals(m * k);
            const std::vector<float> y = random_.normals(m * k);
            OnDevice<float> first(*gpu_, m, k, x, 4);
            OnDevice<float> second(*gpu_, m, k, y, 0);
            std::vector<std::unique_ptr<OnDevice<float>>> grouped;
            std::vector<Product> products;
            for (size_t i = 0; i < matrices.size(); ++i) {
                grouped.push_back(std::make_unique<OnDevice<float>>(*gpu_, m, matrices[i].n, 3));
                products.push_back(
                    {grouped[i]->view(), i % 4 == 3 ? second.view() : first.view(), matrices[i]});
            }
            gpu_->linears(products);
            for (size_t i = 0; i < matrices.size(); ++i) {
                EXPECT_TRUE(same(grouped[i]->result(), run(*gpu_, matrices[i], i % 4 == 3 ? y : x)))
                    << "k " << k << " m " << m << " product " << i;
            }
        }
    }
}

// Plans whose thread blocks wait for each other, by this device's own count of what it holds.
TEST_F(CudaProducts, WhoWaitsIsOnTheDeviceAtOnce) {
    cuda::KernelSet kernels;
    const cuda::Exl3Device device{kernels.processors(), kernels.shared_limit(),
                                  kernels.shared_of_processor()};
    int waiting = 0;
    for (const Kind& kind : kinds()) {
        if (kind.bits == 0) continue;
        for (const int64_t k : {128, 640, 1024, 4096, 8192}) {
            for (const int64_t n : {128, 1024, 2048, 4096, 8192}) {
                Matrix w;
                w.k = w.k_padded = k;
                w.n = w.n_padded = n;
                w.bits = kind.bits;
                w.codebook = kind.codebook;
                for (const int64_t m : {1, 8, 9, 16, 17, 64, 200}) {
                    const cuda::Exl3Plan plan = cuda::plan_exl3(w, m, device);
                    if (!plan.waits) continue;
                    ++waiting;
                    const int64_t tiles = (m + plan.rows() - 1) / plan.rows();
                    const int64_t blocks = n / 128 * tiles * plan.ranks * plan.column_parts();
                    EXPECT_LE(blocks,
                              int64_t{device.processors} * cuda::exl3_resident(plan, w, kernels))
                        << kind.text() << " n " << n << " k " << k << " m " << m;
                }
            }
        }
    }
    EXPECT_GT(waiting, 20);
}

}  // namespace
}  // namespace quadrille::test
