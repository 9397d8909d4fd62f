// SPDX-License-Identifier: Apache-2.0
// Draws on a GPU against the CPU, bit for bit, over a real vocabulary: flat, tied, steep and empty
// rows, every filter, penalties, rows that end early.
#include "kernels/sample_row.h"
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quadrille::test {
namespace {

constexpr int32_t kFirst = 1000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of `columns`: flat within 1e-3, one logit far above the others, ties, moderate, steep,
// nothing but NaN, nothing but -inf, half of them -inf.
std::vector<float> hostile_rows(Random& random, int64_t columns) {
    std::vector<float> all;
    const auto add = [&](auto value_of) {
        for (int64_t c = 0; c < columns; ++c) all.push_back(value_of(c));
    };
    add([&](int64_t) { return random.uniform(-5e-4f, 5e-4f); });
    add([&](int64_t c) { return c == columns / 3 ? 30.0f : random.normal(); });
    add([&](int64_t) { return std::round(random.normal() * 2) / 2; });
    add([&](int64_t) { return random.normal(); });
    add([&](int64_t) { return 8 * random.normal(); });
    add([](int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
    add([](int64_t) { return -kInfinity; });
    add([&](int64_t c) { return c % 2 == 0 ? -kInfinity : random.normal(); });
    return all;
}

std::vector<SampleRow> all_filters(Random& random, int32_t columns) {
    std::vector<SampleRow> rows;
    for (const double top_p : {1.0, 1 - 1e-7, 0.95, 0.3, 1e-9}) {
        for (const int32_t top_k : {0, 1, 20, 3000, columns}) {
            for (const double min_p : {0.0, 1e-6, 0.2}) {
                for (int32_t row = 0; row < 8; ++row) {
                    rows.push_back({.seed = random.bits(),
                                    .position = std::ssize(rows),
                                    .inverse_temperature = row % 3 == 2 ? 1.4 : 1.0,
                                    .row = row,
                                    .top_k = top_k,
                                    .top_p = top_p,
                                    .min_p = min_p});
                }
            }
        }
    }
    for (int32_t row = 0; row < 8; ++row) rows.push_back({.row = row, .top_p = 0.5});  // greedy
    return rows;
}

class CudaSample : public testing::Test {
  protected:
    // On the CPU and on the GPU.
    template <class Run>
    void compare(std::vector<SampleRow> rows, const std::vector<float>& logits, int64_t columns,
                 Run run) {
        decltype(run(*cpu_, SampleInput{})) results[2];
        for (Backend* backend : {cpu_.get(), gpu_.get()}) {
            const OnDevice<float> x(*backend, std::ssize(logits) / columns, columns, logits, 5);
            std::vector<uint32_t> bits(static_cast<size_t>(kFirst + columns) / 32 + 1, 0x88888888u);
            const OnDevice<uint32_t> seen(*backend, 1, std::ssize(bits), bits);
            std::vector<SampleRow> here = rows;
            for (SampleRow& row : here) row.seen = seen.data();
            Array<SampleRow> table(*backend, 1, std::ssize(here));
            table.upload(here);
            results[backend == gpu_.get() ? 1 : 0] =
                run(*backend, SampleInput{x.view(), table.data(), static_cast<int32_t>(here.size()),
                                          kFirst, static_cast<int32_t>(columns - 3)});
        }
        ASSERT_EQ(results[0].size(), results[1].size());
        for (size_t i = 0; i < results[0].size(); ++i) {
            EXPECT_EQ(results[0][i], results[1][i])
                << "row " << rows[i].row << " of " << columns << ", top-k " << rows[i].top_k
                << ", top-p " << rows[i].top_p << ", min-p " << rows[i].min_p;
        }
    }

    static std::vector<int32_t> filtered(Backend& backend, const SampleInput& in) {
        OnDevice<int32_t> id(backend, 1, in.count);
        backend.sample_filtered(id.data(), in);
        return id.result();
    }

    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
    std::unique_ptr<Backend> gpu_ = make_backend("cuda");
    Random random_{12};
};

TEST_F(CudaSample, FiltersLikeTheCpu) {
    for (const int32_t columns : {4, 700, 154880}) {
        const std::vector<float> logits = hostile_rows(random_, columns);
        std::vector<SampleRow> rows = all_filters(random_, columns);
        compare(rows, logits, columns, filtered);
        for (SampleRow& row : rows) row.penalty = 1.3f;
        compare(rows, logits, columns, filtered);
    }
}

TEST_F(CudaSample, RowsEndLikeTheCpus) {
    const int32_t columns = 154880;
    const std::vector<float> logits = hostile_rows(random_, columns);
    std::vector<SampleRow> rows;
    for (int32_t i = 0; i < 64; ++i) {
        const auto column = static_cast<int32_t>(random_.integer(0, columns - 1));
        rows.push_back({.position = i,
                        .inverse_temperature = 1.0,
                        .row = i % 8,
                        .end = logits[static_cast<size_t>(i % 8 * columns + column)],
                        .end_id = kFirst + column});
    }
    compare(rows, logits, columns, [](Backend& backend, const SampleInput& in) {
        OnDevice<double> score(backend, 1, in.count);
        OnDevice<int32_t> id(backend, 1, in.count);
        OnDevice<float> logit(backend, 1, in.count);
        backend.sample(score.data(), id.data(), logit.data(), in, {nullptr, in.count, 0});
        return id.result();
    });
    compare(rows, logits, columns, [](Backend& backend, const SampleInput& in) {
        const Array<ExpSum> sums(backend, 1, in.count);
        backend.sample_sum(sums.data(), in);
        return sums.download();
    });
}

}  // namespace
}  // namespace quadrille::test
