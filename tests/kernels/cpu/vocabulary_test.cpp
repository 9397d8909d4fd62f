// SPDX-License-Identifier: Apache-2.0
// Choice among logits: ties, NaN, infinities, padding columns, fewer columns than asked for.
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quadrille::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Choice {
    std::vector<float> values;
    std::vector<int32_t> ids;
};

Choice top(std::span<const float> row, int64_t k, int32_t first_id, int32_t valid) {
    cpu::CpuBackend backend;
    Guarded<float> values(1, k, 1);
    Guarded<int32_t> ids(1, k, 2);
    backend.top_k(values.view(), ids.view(), {row.data(), 1, std::ssize(row)}, first_id, valid);
    EXPECT_TRUE(values.written());
    EXPECT_TRUE(ids.written());
    return {values.values(), ids.values()};
}

std::pair<float, int32_t> largest(std::span<const float> row, int32_t first_id, int32_t valid) {
    cpu::CpuBackend backend;
    Guarded<float> value(1, 1);
    Guarded<int32_t> id(1, 1);
    backend.argmax(value.data(), id.data(), {row.data(), 1, std::ssize(row)}, first_id, valid);
    EXPECT_TRUE(value.written());
    EXPECT_TRUE(id.written());
    return {value.values()[0], id.values()[0]};
}

TEST(Vocabulary, ArgmaxTakesTheLowestOfEqualsInsideTheValidColumns) {
    using Pair = std::pair<float, int32_t>;
    EXPECT_EQ(largest(std::vector<float>{1, 3, 3, 9}, 100, 3), Pair(3, 101));
    EXPECT_EQ(largest(std::vector<float>{NAN, -2, NAN, -5}, 0, 4), Pair(-2, 1));
    EXPECT_EQ(largest(std::vector<float>{-kInfinity, -kInfinity}, 5, 2), Pair(-kInfinity, 5));
    EXPECT_EQ(largest(std::vector<float>{1, 2}, 5, 0), Pair(-kInfinity, -1));
    EXPECT_EQ(largest(std::vector<float>{NAN, NAN}, 5, 2), Pair(-kInfinity, -1));
    EXPECT_EQ(largest(std::vector<float>{0, kInfinity, kInfinity}, 5, 3), Pair(kInfinity, 6));
    EXPECT_THROW(largest(std::vector<float>{0, 1}, 5, 3), Error);
}

TEST(Vocabulary, TopKIsTheStableSort) {
    Random random(4);
    for (const int32_t valid : {1, 15, 16, 17, 1000}) {
        std::vector<float> row(1000);
        // Few distinct values: many ties.
        for (float& value : row) value = static_cast<float>(random.integer(-40, 40));
        std::vector<int32_t> order(static_cast<size_t>(valid));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
        });
        for (const int64_t k : {1, 2, 16, 256}) {
            const Choice found = top(row, k, 7, valid);
            for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
                const bool there = i < order.size();
                EXPECT_EQ(found.ids[i], there ? order[i] + 7 : -1) << k << " of " << valid;
                EXPECT_EQ(found.values[i], there ? row[static_cast<size_t>(order[i])] : -kInfinity);
            }
        }
    }
}

TEST(Vocabulary, TopKNeverTakesNan) {
    const Choice found = top(std::vector<float>{NAN, 1, NAN, kInfinity, -kInfinity}, 4, 0, 5);
    EXPECT_TRUE(same(found.values, std::vector<float>{kInfinity, 1, -kInfinity, -kInfinity}));
    EXPECT_TRUE(same(found.ids, std::vector<int32_t>{3, 1, 4, -1}));
}

// Shares of uneven width, some shorter than k, one empty: the merged lists are those of the whole
// row, ties across shares included.
TEST(Vocabulary, MergedListsOfSharesAreTheListOfTheWhole) {
    cpu::CpuBackend backend;
    Random random(5);
    constexpr int64_t kRows = 9;
    constexpr int32_t kWidth = 200;
    const std::vector<int32_t> bounds = {0, 3, 3, 90, kWidth};
    std::vector<float> logits(kRows * kWidth);
    for (float& value : logits) value = static_cast<float>(random.integer(-9, 9));
    logits[5] = NAN;
    std::fill_n(logits.begin() + kWidth, kWidth, -kInfinity);
    const View<const float> in(logits.data(), kRows, kWidth);
    const auto parts = std::ssize(bounds) - 1;
    for (const int64_t k : {1, 16, 250}) {
        const int64_t stride = kRows * k + 3;
        std::vector<float> part_values(static_cast<size_t>(parts * stride));
        std::vector<int32_t> part_ids(part_values.size());
        for (int64_t p = 0; p < parts; ++p) {
            const int32_t first = bounds[static_cast<size_t>(p)];
            const int32_t count = bounds[static_cast<size_t>(p) + 1] - first;
            backend.top_k({part_values.data() + p * stride, kRows, k},
                          {part_ids.data() + p * stride, kRows, k}, in.slice_cols(first, count),
                          7 + first, count);
        }
        Guarded<float> whole_values(kRows, k), values(kRows, k, 2);
        Guarded<int32_t> whole_ids(kRows, k), ids(kRows, k, 3);
        backend.top_k(whole_values.view(), whole_ids.view(), in, 7, kWidth);
        backend.merge_top_k(values.view(), ids.view(), part_values.data(), part_ids.data(),
                            static_cast<int32_t>(parts), stride);
        EXPECT_TRUE(values.written());
        EXPECT_TRUE(ids.written());
        EXPECT_TRUE(same(values.values(), whole_values.values())) << k;
        EXPECT_TRUE(same(ids.values(), whole_ids.values())) << k;
    }
}

TEST(Vocabulary, RowsAreIndependent) {
    cpu::CpuBackend backend;
    Random random(12);
    constexpr int64_t kPool = 17;
    const std::vector<float> pool = random.normals(kPool * 333);
    expect_one_arithmetic_per_row(kPool, 5, [&](std::span<const int64_t> rows, int64_t gap) {
        const int64_t m = std::ssize(rows);
        const Guarded<float> in(m, 333, gather_rows<float>(pool, 333, rows), gap);
        Guarded<float> values(m, 4, gap);
        Guarded<int32_t> ids(m, 4, gap);
        Guarded<float> best(m, 1);
        Guarded<int32_t> id(m, 1);
        backend.top_k(values.view(), ids.view(), in.view(), 0, 300);
        backend.argmax(best.data(), id.data(), in.view(), 0, 300);
        std::vector<float> out;
        for (int64_t r = 0; r < m; ++r) {
            out.insert(out.end(), values.view().row(r), values.view().row(r) + 4);
            out.push_back(static_cast<float>(id.data()[r]));
            EXPECT_EQ(id.data()[r], ids.view().row(r)[0]);
            EXPECT_EQ(best.data()[r], values.view().row(r)[0]);
        }
        return out;
    });
}

}  // namespace
}  // namespace quadrille::test
