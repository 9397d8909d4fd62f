// SPDX-License-Identifier: Apache-2.0
// Sums over ranks: a tree whose order shows in the bits, both ways and for any number of rows.
#include "runtime/ranks/tree_reduce.h"

#include "kernels/error.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kWidth = 24;

// A value whose sums depend on the order: magnitudes spread over 2^±20.
float value(int rank, int64_t row, int64_t column) {
    uint64_t bits = static_cast<uint64_t>(rank + 1) * 0x9e3779b97f4a7c15u +
                    static_cast<uint64_t>(row) * 0xbf58476d1ce4e5b9u +
                    static_cast<uint64_t>(column) * 0x94d049bb133111ebu;
    bits = (bits ^ bits >> 31) * 0xd6e8feb86659fd93u;
    bits ^= bits >> 32;
    const auto mantissa = static_cast<float>(static_cast<int32_t>(bits & 0xffffffu) - 0x800000);
    return std::ldexp(mantissa, static_cast<int>(bits >> 24 & 63) - 55);
}

float tree(int size, int64_t row, int64_t column) {
    const auto v = [&](int rank) { return value(rank, row, column); };
    if (size == 1) return v(0);
    if (size == 2) return v(0) + v(1);
    return (v(0) + v(1)) + (v(2) + v(3));
}

class TreeReduceTest : public testing::TestWithParam<TreeReduce::Way> {
  protected:
    // Sums `rows` rows into a buffer that is one row longer; checks every bit.
    void expect_tree(TreeReduce& reduce, int64_t rows, bool in_place) {
        std::vector<float> partial;
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t column = 0; column < kWidth; ++column) {
                partial.push_back(value(world_.rank(), row, column));
            }
        }
        Array<float> in(*backend_, rows + 1, kWidth);
        Array<float> out(*backend_, rows + 1, kWidth);
        in.upload(partial);
        const float nan = std::numeric_limits<float>::quiet_NaN();
        const std::vector<float> unset(static_cast<size_t>((rows + 1) * kWidth), nan);
        Array<float>& sums = in_place ? in : out;
        if (!in_place) out.upload(unset);
        reduce.sum(sums.first(rows), in.first(rows));
        const std::vector<float> result = sums.download();
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t column = 0; column < kWidth; ++column) {
                const float found = result[static_cast<size_t>(row * kWidth + column)];
                ASSERT_EQ(std::bit_cast<uint32_t>(found),
                          std::bit_cast<uint32_t>(tree(world_.size(), row, column)))
                    << "row " << row << " of " << rows << ", column " << column;
            }
        }
        for (int64_t column = 0; column < kWidth; ++column) {
            const float behind = result[static_cast<size_t>(rows * kWidth + column)];
            ASSERT_TRUE(in_place ? behind == 0.0f : std::isnan(behind));
        }
    }

    Communicator& world_ = test::session().world();
    std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

TEST_P(TreeReduceTest, SumsAreTheTreeBitForBit) {
    TreeReduce reduce(*backend_, world_, 144, kWidth, GetParam());
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 144}) {
        expect_tree(reduce, rows, false);
        expect_tree(reduce, rows, true);
    }
}

TEST_P(TreeReduceTest, LargePassesFitTheBuffersOfTheSwitch) {
    // 64 KiB is 682 rows here: sizes on both sides of it.
    TreeReduce reduce(*backend_, world_, 3001, kWidth, GetParam());
    for (const int64_t rows : {681, 682, 683, 684, 3001}) expect_tree(reduce, rows, false);
}

INSTANTIATE_TEST_SUITE_P(Ways, TreeReduceTest,
                         testing::Values(TreeReduce::Way::gather, TreeReduce::Way::scatter,
                                         TreeReduce::Way::by_size));

TEST(TreeReduceTest, TheOrderShowsInTheseValues) {
    // Otherwise the test above would pass with any order of summation.
    int different = 0;
    for (int64_t column = 0; column < 1000; ++column) {
        const float in_order = ((value(0, 0, column) + value(1, 0, column)) + value(2, 0, column)) +
                               value(3, 0, column);
        different += in_order != tree(4, 0, column) ? 1 : 0;
    }
    EXPECT_GT(different, 100);
}

TEST(TreeReduceTest, WrongShapesAreErrors) {
    const auto backend = make_backend("cpu");
    TreeReduce reduce(*backend, test::session().world(), 4, kWidth);
    Array<float> rows(*backend, 8, kWidth);
    EXPECT_THROW(reduce.sum(rows.first(5), rows.first(5)), Error);
    EXPECT_THROW(reduce.sum(rows.first(3), rows.first(2)), Error);
    const View<float> narrow = rows.view().slice_cols(0, kWidth - 1);
    EXPECT_THROW(reduce.sum(narrow, narrow), Error);
    const View<float> gaps(rows.data(), 2, kWidth, 2 * kWidth);
    EXPECT_THROW(reduce.sum(gaps, gaps), Error);
}

}  // namespace
}  // namespace quadrille
