// SPDX-License-Identifier: Apache-2.0
// The trained drafter against the reference implementation (tests/data/demo_golden.h5): every
// draft, every accept count, and the values along the way.
#include "tests/support/golden.h"

#include "tests/support/draft_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/tolerance.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quadrille::test {
namespace {

constexpr int32_t kBlock = 8;
constexpr int64_t kHidden = 256;
constexpr int64_t kVocabulary = 4096;

class GoldenDrafts : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        folder_ = find_model("demo-" + GetParam());
        if (!folder_) GTEST_SKIP() << "demo-" << GetParam() << " is not in QUADRILLE_TEST_MODELS";
    }
    std::vector<std::vector<int32_t>> ragged(const std::string& name) const {
        return golden_.read_ragged<int32_t>("/" + GetParam() + "/" + name);
    }
    ModelCase target(int32_t slots) const {
        return {*folder_,
                session().world(),
                {.slots = slots, .capacity = 1024, .max_rows = 1024, .max_block = kBlock},
                trained_taps()};
    }

    std::optional<std::filesystem::path> folder_;
    Golden golden_{data_path("demo_golden.h5")};
};

TEST_P(GoldenDrafts, DraftsAndAcceptCountsAreIdentical) {
    ModelCase target = this->target(12);
    DraftCase draft(target);
    const auto greedy = ragged("greedy");
    for (const int32_t k : {7, 2}) {
        WatchedDrafter watched(*draft);
        const auto results =
            target.run(golden_prompts(std::ssize(greedy[0])), target.engine_options(k), &watched);
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

// The golden token at position 20 stops every record: the golden prefix through its first
// occurrence, and the golden's counts up to there.
using GoldenStops = GoldenDrafts;

TEST_P(GoldenStops, AnAcceptedDraftMayBeAStopToken) {
    ModelCase target = this->target(12);
    DraftCase draft(target);
    const auto greedy = ragged("greedy");
    const auto accepted = ragged("accepted_k7");
    std::vector<Prompt> prompts = golden_prompts(std::ssize(greedy[0]));
    std::erase_if(prompts, [](const Prompt& prompt) { return prompt.tokens.size() > 100; });
    for (Prompt& prompt : prompts) {
        prompt.options.stop_tokens = {greedy[static_cast<size_t>(prompt.index)][20]};
    }
    int64_t cut = 0;  // blocks in which an accepted draft is the stop token
    for (const Generation& result : target.run(prompts, target.engine_options(7), &*draft)) {
        const auto i = static_cast<size_t>(result.prompt_index);
        const auto stop = std::find(greedy[i].begin(), greedy[i].end(), greedy[i][20]);
        EXPECT_EQ(result.tokens, std::vector<int32_t>(greedy[i].begin(), stop + 1));
        EXPECT_EQ(result.finish_reason, FinishReason::stop);
        std::vector<uint8_t> trace;
        int64_t left = stop - greedy[i].begin();  // tokens behind the first
        for (size_t step = 0; left > 0; ++step) {
            const int64_t drafts = std::min<int64_t>(accepted[i][step], left);
            if (drafts == left) ++cut;
            trace.push_back(static_cast<uint8_t>(drafts));
            left -= drafts + 1;
        }
        EXPECT_EQ(result.acceptance.trace, trace) << "prompt " << i;
    }
    EXPECT_GT(cut, 0);
}

using GoldenDraftTrace = GoldenDrafts;

TEST_P(GoldenDraftTrace, AgreesValueByValue) {
    const std::string trace = "/" + GetParam() + "/trace";
    const auto which = static_cast<size_t>(golden_.number(trace, "prompt"));
    const std::vector<int32_t> tokens = golden_prompts(1)[which].tokens;
    const auto m = static_cast<int32_t>(tokens.size());
    ModelCase target = this->target(2);
    DraftCase draft(target);
    StepBatch batch(target.backend(), m, 1);
    batch.clear(true);
    batch.add(1, 0, 0, tokens, Logits::last);
    target.forward(batch);
    draft->append(target.model().taps(), std::vector<uint8_t>(tokens.size(), 1), batch.rows());

    const std::vector<float> features = target.download(draft->features());
    EXPECT_EQ(std::ssize(features), m * kHidden);
    EXPECT_LE(largest_difference(features, golden_.read<float>(trace + "/draft_context").values),
              kGoldenTrace);

    const DraftRequest request{
        .record = 0,
        .slot = 1,
        .position = m,
        .anchor = static_cast<int32_t>(golden_.number(trace, "anchor")),
    };
    std::vector<int32_t> drafts(kBlock - 1);
    draft->propose(drafts, kBlock - 1, {&request, 1});
    EXPECT_LE(largest_difference(target.download(draft->hidden()),
                                 golden_.read<float>(trace + "/draft_hidden").values),
              kGoldenTrace);
    // The reference has a row for the anchor too, which nobody uses.
    const std::vector<float> logits = golden_.read<float>(trace + "/draft_logits").values;
    EXPECT_LE(largest_difference(target.join_logits(draft->logits()),
                                 std::span(logits).subspan(kVocabulary)),
              kGoldenTrace);
}

INSTANTIATE_TEST_SUITE_P(Bundled, GoldenDrafts, testing::Values("full-4bpw"), pack_name);
INSTANTIATE_TEST_SUITE_P(Bundled, GoldenStops, testing::Values("full-4bpw"), pack_name);
INSTANTIATE_TEST_SUITE_P(Bundled, GoldenDraftTrace, testing::Values("full-4bpw"), pack_name);
// Not part of the project for their size; two ranks are enough for them.
INSTANTIATE_TEST_SUITE_P(Other, GoldenDrafts, testing::Values("bf16", "tr3-4bpw", "k2"), pack_name);
INSTANTIATE_TEST_SUITE_P(Other, GoldenDraftTrace, testing::Values("tr3-4bpw"), pack_name);

}  // namespace
}  // namespace quadrille::test
