// SPDX-License-Identifier: Apache-2.0
// The ops between the parts of a decode step, by hand-made numbers; on a GPU too where there is
// one.
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace quadrille::test {
namespace {

class Step : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (GetParam() == "cuda" && gpu_count() == 0) GTEST_SKIP() << "no GPU";
        backend_ = make_backend(GetParam());
    }
    Backend& backend() { return *backend_; }

    std::unique_ptr<Backend> backend_;
};

// Blocks of 3, 1 and 4 rows; then padding: 2 rows, and a sequence without any.
RowLayout blocks() {
    RowLayout layout;
    layout.add(5, 10, 3, 1);
    layout.add(0, 7, 1, 1);
    layout.add(2, 0, 4);
    layout.add(-1, 0, 2);
    layout.add(-1, 0, 0);
    return layout;
}

TEST_P(Step, BlocksAreAnAnchorAndItsDrafts) {
    const RowLayout layout = blocks();
    Uploads uploads(backend());
    const std::vector<int32_t> anchor = {100, 200, 300, -1};
    const std::vector<int32_t> path = {1, 2, 3, 4, 5, 6, 7, -1, 9, 0, 0, 0};  // (4, 3)
    OnDevice<int32_t> tokens(backend(), 1, 10);
    backend().block_tokens(tokens.view().data, uploads.array(anchor), {uploads.array(path), 4, 3},
                           uploads.rows(layout.rows()));
    EXPECT_EQ(tokens.result(), (std::vector<int32_t>{100, 1, 2, 200, 300, 7, -1, 9, -1, -1}));
}

TEST_P(Step, WithoutDraftsABlockIsItsAnchor) {
    RowLayout layout;
    layout.add(1, 4, 1, 1);
    layout.add(-1, 0, 2);
    Uploads uploads(backend());
    const std::vector<int32_t> anchor = {17, -1};
    OnDevice<int32_t> tokens(backend(), 1, 3);
    backend().block_tokens(tokens.view().data, uploads.array(anchor), {nullptr, 2, 0},
                           uploads.rows(layout.rows()));
    EXPECT_EQ(tokens.result(), (std::vector<int32_t>{17, -1, -1}));
}

TEST_P(Step, AcceptsTheLongestPrefixThatTheTargetConfirms) {
    const RowLayout layout = blocks();
    Uploads uploads(backend());
    // Block 0: both drafts confirmed. Block 2: the first, not the second; the third would match.
    const std::vector<int32_t> tokens = {100, 1, 2, 200, 300, 7, 8, 9, -1, -1};
    const std::vector<int32_t> target = {1, 2, 50, 60, 7, 0, 9, 4, -1, -1};
    OnDevice<uint8_t> write(backend(), 1, 12);
    backend().mark_accepted(write.view().data, uploads.array(tokens), uploads.array(target),
                            uploads.rows(layout.rows()));
    EXPECT_EQ(write.result(), (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
}

TEST_P(Step, MergesTheBestSampleOfAllRanks) {
    constexpr int32_t kRows = 5;
    constexpr int64_t kBytes = 16 * kRows;
    constexpr double kLowest = -std::numeric_limits<double>::infinity();
    const std::vector<double> scores[] = {{1.5, 2.0, kLowest, -3.0, kLowest},
                                          {1.5, 2.5, kLowest, 9.0, kLowest},
                                          {0.5, 2.25, 7.0, 9.5, kLowest}};
    const std::vector<int32_t> ids[] = {
        {3, 4, -1, 5, -1}, {13, 14, -1, -1, -1}, {23, 24, 25, 26, -1}};
    std::vector<unsigned char> parts(3 * kBytes);
    for (size_t part = 0; part < 3; ++part) {
        std::memcpy(parts.data() + part * kBytes, scores[part].data(), 8 * kRows);
        std::memcpy(parts.data() + part * kBytes + 8 * kRows, ids[part].data(), 4 * kRows);
    }
    Uploads uploads(backend());
    const auto* all = reinterpret_cast<const double*>(uploads.array(parts));
    OnDevice<int32_t> id(backend(), 1, kRows);
    backend().merge_samples(id.view().data, all, reinterpret_cast<const int32_t*>(all + kRows),
                            kRows, 3, kBytes);
    EXPECT_EQ(id.result(), (std::vector<int32_t>{3, 14, 25, 26, -1}));
}

TEST_P(Step, PaddingIsRoutedNowhereAndChangesNoOtherRow) {
    const RowLayout layout = blocks();
    constexpr int64_t kExperts = 16;
    constexpr int64_t kTop = 3;
    Random random(3);
    Uploads uploads(backend());
    const auto bias = uploads.array(random.normals(kExperts));
    OnDevice<float> logits(backend(), 10, kExperts, random.normals(10 * kExperts));
    const auto route = [&](const Rows& rows) {
        OnDevice<int32_t> ids(backend(), 10, kTop, 1);
        OnDevice<float> weights(backend(), 10, kTop, 1);
        backend().route(ids.view(), weights.view(), logits.view(), bias, 2.5f, rows);
        return std::pair{ids.result(), weights.result()};
    };
    auto [ids, weights] = route({});
    std::fill(ids.end() - 2 * kTop, ids.end(), -1);
    std::fill(weights.end() - 2 * kTop, weights.end(), 0.0f);
    const auto padded = route(uploads.rows(layout.rows()));
    EXPECT_EQ(padded.first, ids);
    EXPECT_EQ(padded.second, weights);
}

INSTANTIATE_TEST_SUITE_P(Backends, Step, testing::Values("cpu", "check", "cuda"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace quadrille::test
