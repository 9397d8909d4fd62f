// SPDX-License-Identifier: Apache-2.0
// The trained drafter against the reference implementation (tests/data/demo_golden.h5): every
// draft, every accept count, and the values along the way.
#include "tests/support/golden.h"

#include "tests/runtime/mpi_main.h"
#include "tests/support/draft_case.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace quadrille::test {
namespace {

constexpr int32_t kBlock = 8;

class GoldenDrafts : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        folder_ = find_model("demo-" + GetParam());
        if (!folder_) GTEST_SKIP() << "demo-" << GetParam() << " is not in QUADRILLE_TEST_MODELS";
    }
    std::vector<std::vector<int32_t>> ragged(const std::string& name) const {
        return golden_.read_ragged<int32_t>("/" + GetParam() + "/" + name);
    }
    std::optional<std::filesystem::path> folder_;
    Golden golden_{data_path("demo_golden.h5")};
};

TEST_P(GoldenDrafts, DraftsAndAcceptCountsAreIdentical) {
    DraftCase run(*folder_, session().world(),
                  {.slots = 12, .capacity = 1024, .max_rows = 1024, .max_block = kBlock});
    const auto greedy = ragged("greedy");
    for (const int32_t k : {7, 2}) {
        WatchedDrafter watched(run.drafter());
        const auto results = run.target().run(golden_prompts(std::ssize(greedy[0])),
                                              run.target().engine_options(k), &watched);
        const auto accepted = ragged(k == 7 ? "accepted_k7" : "accepted_k2");
        ASSERT_EQ(results.size(), greedy.size());
        for (size_t i = 0; i < results.size(); ++i) {
            EXPECT_EQ(results[i].tokens, greedy[i]) << "prompt " << i << " K " << k;
            const std::vector<uint8_t>& trace = results[i].acceptance.trace;
            EXPECT_EQ(std::vector<int32_t>(trace.begin(), trace.end()), accepted[i])
                << "prompt " << i << " K " << k;
            if (k < 7) continue;
            EXPECT_EQ(watched.drafts().at(static_cast<int64_t>(i)), ragged("drafts_k7")[i])
                << "prompt " << i;
        }
    }
}

std::string pack_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Bundled, GoldenDrafts, testing::Values("full-4bpw"), pack_name);
// Not part of the project for their size; two ranks are enough for them.
INSTANTIATE_TEST_SUITE_P(Other, GoldenDrafts, testing::Values("bf16", "tr3-4bpw", "k2"), pack_name);

}  // namespace
}  // namespace quadrille::test
