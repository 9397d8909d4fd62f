// SPDX-License-Identifier: Apache-2.0
// Every instruction set gives the bits of the plain path. Sets this machine lacks are skipped.
#include "kernels/cpu/paths.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"
#include "kernels/exl3.h"
#include "tests/support/matrices.h"
#include "tests/support/op_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace quadrille::test {
namespace {

class PathsOf : public testing::TestWithParam<cpu::Isa> {
  protected:
    void SetUp() override {
        if (!cpu::has_isa(GetParam())) GTEST_SKIP() << "no " << name(GetParam());
    }
    const cpu::Paths& fast() const { return cpu::paths_of(GetParam()); }
    const cpu::Paths& plain() const { return cpu::paths_of(cpu::Isa::plain); }
    Random random_{77};
};

// At 8 bits the state of a position is its symbol behind the one before. Tile a alternates a with
// a, a + 1 .. a + 127: all 256 tiles hold every pair of symbols, which is every state.
TEST_P(PathsOf, DecodeEveryState) {
    for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg, Codebook::mul1}) {
        const std::vector<float> table = cpu::codebook_table(codebook);
        for (int block_index = 0; block_index < 4; ++block_index) {
            std::vector<uint16_t> trellis;
            for (int tile = 0; tile < 64; ++tile) {
                const auto a = static_cast<uint32_t>(block_index * 64 + tile);
                std::vector<uint8_t> symbols;
                for (uint32_t t = 0; t < 256; ++t) {
                    symbols.push_back(static_cast<uint8_t>(t % 2 == 0 ? a : (a + t / 2) % 256));
                }
                for (size_t word = 0; word < 64; ++word) {
                    uint32_t bits = 0;
                    for (size_t i = 0; i < 4; ++i) bits = bits << 8 | symbols[4 * word + i];
                    trellis.push_back(static_cast<uint16_t>(bits));
                    trellis.push_back(static_cast<uint16_t>(bits >> 16));
                }
            }
            // Unit inputs read the weights out one input at a time.
            std::vector<float> unit(128 * 128);
            for (size_t i = 0; i < 128; ++i) unit[i * 129] = 1.0f;
            cpu::Exl3Block block{.x = unit.data(), .x_stride = 128, .m = 128};
            block.trellis = trellis.data();
            block.trellis_stride = 8 * 128;
            block.blocks = 1;
            block.bits = 8;
            block.codebook = codebook;
            block.weights = table.data();
            std::vector<float> found(128 * 128);
            std::vector<float> expected(128 * 128);
            fast().exl3_block(found.data(), block);
            plain().exl3_block(expected.data(), block);
            EXPECT_TRUE(same(found, expected)) << static_cast<int>(codebook);
        }
    }
}

TEST_P(PathsOf, Exl3BlocksHaveThePlainBits) {
    for (int bits = 1; bits <= 8; ++bits) {
        for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg, Codebook::mul1}) {
            const std::vector<float> table = cpu::codebook_table(codebook);
            const MatrixData data = MatrixData::exl3(random_, 256, 384, bits, codebook);
            const Matrix matrix = data.matrix();
            for (const int64_t m : kRowCounts) {
                const std::vector<float> x = random_.normals(m * 384);
                cpu::Exl3Block block{.x = x.data(), .x_stride = 384, .m = m};
                block.trellis = matrix.trellis + 8 * 16 * bits;  // the second block of outputs
                block.trellis_stride = 16 * 16 * bits;
                block.blocks = 3;
                block.bits = bits;
                block.codebook = codebook;
                block.weights = table.data();
                Guarded<float> found(m, 128);
                Guarded<float> expected(m, 128);
                fast().exl3_block(found.data(), block);
                plain().exl3_block(expected.data(), block);
                EXPECT_TRUE(found.written());
                EXPECT_TRUE(same(found.values(), expected.values())) << fmt::format(
                    "{} bits, codebook {}, {} rows", bits, static_cast<int>(codebook), m);
            }
        }
    }
}

TEST_P(PathsOf, HadamardHasThePlainBits) {
    const std::vector<float> x = random_.normals(5 * 128);
    Guarded<float> found(5, 128, x);
    Guarded<float> expected(5, 128, x);
    fast().hadamard(found.data(), 5);
    plain().hadamard(expected.data(), 5);
    EXPECT_TRUE(found.intact());
    EXPECT_TRUE(same(found.values(), expected.values()));
    // Twice is the identity, up to rounding.
    plain().hadamard(expected.data(), 5);
    EXPECT_TRUE(close(expected.values(), x, reduced(128)));
}

TEST_P(PathsOf, NativeProductsHaveThePlainBits) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                                   {3, 15},
                                   {5, 16},
                                   {9, 255},
                                   {8, 256},
                                   {17, 257},
                                   {33, 1000},
                                   {4, 0}}) {
            MatrixData data = MatrixData::native(random_, n, k + 8, dtype);
            const Matrix matrix = data.matrix();
            for (const int64_t m : kRowCounts) {
                const Guarded<float> x(m, k, random_.normals(m * k), 3);
                std::vector<float> scratch(static_cast<size_t>(cpu::kNativeScratchRows * (k + 1)));
                cpu::NativeRows rows{.x = x.view().data, .x_stride = k + 3, .m = m};
                rows.matrix = &matrix;
                rows.first = 5;
                rows.k = k;
                rows.scratch = scratch.data();
                Guarded<float> found(m, n, 2);
                Guarded<float> expected(m, n, 2);
                fast().native_rows(found.data(), n + 2, rows);
                plain().native_rows(expected.data(), n + 2, rows);
                EXPECT_TRUE(found.written());
                EXPECT_TRUE(same(found.values(), expected.values()))
                    << fmt::format("{} n {} k {} m {}", name(dtype), n, k, m);
            }
        }
    }
}

TEST_P(PathsOf, LinearHasThePlainBits) {
    cpu::CpuBackend fast(GetParam());
    cpu::CpuBackend plain(cpu::Isa::plain);
    for (const int bits : {0, 3, 4, 8}) {
        MatrixData data = bits > 0 ? MatrixData::exl3(random_, 192, 448, bits, Codebook::mul1)
                                   : MatrixData::native(random_, 192, 448, Dtype::bf16);
        data.add_bias(random_);
        data.cut_segments(4);
        for (const int64_t m : kRowCounts) {
            const std::vector<float> x = random_.normals(m * 448);
            Guarded<float> found(m, 192, 1);
            Guarded<float> expected(m, 192, 1);
            fast.linear(found.view(), {x.data(), m, 448}, data.matrix());
            plain.linear(expected.view(), {x.data(), m, 448}, data.matrix());
            EXPECT_TRUE(found.written());
            EXPECT_TRUE(same(found.values(), expected.values())) << bits << " bits, m " << m;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, PathsOf,
                         testing::Values(cpu::Isa::plain, cpu::Isa::avx2, cpu::Isa::avx512),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST(Paths, AreForcedByTheNameOfTheBackend) {
    EXPECT_EQ(make_backend("cpu")->name(), "cpu");
    EXPECT_EQ(make_backend("cpu-plain")->name(), "cpu");
    EXPECT_THROW(make_backend("cpu-"), Error);
    EXPECT_THROW(make_backend(""), Error);
    for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
        const std::string forced = fmt::format("cpu-{}", name(isa));
        if (cpu::has_isa(isa)) {
            EXPECT_EQ(make_backend(forced)->name(), "cpu");
        } else {
            EXPECT_THROW(make_backend(forced), Error);
        }
    }
}

TEST(Paths, RefusesASetThatIsNotThere) {
    for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (cpu::has_isa(isa)) continue;
        EXPECT_THROW(cpu::CpuBackend{isa}, Error) << name(isa);
    }
    EXPECT_TRUE(cpu::has_isa(cpu::detect_isa()));
}

}  // namespace
}  // namespace quadrille::test
