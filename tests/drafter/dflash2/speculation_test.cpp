// SPDX-License-Identifier: Apache-2.0
// Runs with the trained drafter: tokens of plain decoding at every K, whatever the batch, its order
// and the changes of K; drafts that depend on their record alone; a context that holds committed
// tokens and nothing else.
#include "tests/support/draft_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;
constexpr int64_t kTokens = 20;

ModelLimits limits(int32_t slots) {
    return {.slots = slots, .capacity = 512, .max_rows = 320, .max_block = kMaxK + 1};
}

// Golden prompts of 17 to 33 tokens and the one of 300, which outgrows the drafter's window.
std::vector<Prompt> some_prompts() {
    std::vector<Prompt> prompts = golden_prompts(kTokens);
    std::erase_if(prompts, [](const Prompt& prompt) {
        return prompt.tokens.size() > 33 && prompt.tokens.size() != 300;
    });
    for (size_t i = 0; i < prompts.size(); ++i) {
        prompts[i].index = static_cast<int64_t>(i);
        prompts[i].options.ignore_eos = true;
    }
    return prompts;
}

class TrainedDrafter : public testing::Test {
  protected:
    TrainedDrafter()
        : target_(*find_model(kModel), session().world(), limits(8), trained_taps()),
          draft_(target_) {}

    ModelCase target_;
    DraftCase draft_;
};

TEST_F(TrainedDrafter, NeverChangesTokens) {
    const auto plain = target_.run(some_prompts(), target_.engine_options());
    int64_t accepted = 0;
    for (int32_t k = 0; k <= kMaxK; ++k) {
        const auto results = target_.run(some_prompts(), target_.engine_options(k), &*draft_);
        ASSERT_EQ(results.size(), plain.size());
        for (size_t i = 0; i < plain.size(); ++i) {
            EXPECT_EQ(results[i].tokens, plain[i].tokens) << "record " << i << " K " << k;
            accepted += results[i].acceptance.accepted;
        }
    }
    EXPECT_GT(accepted, 0);
}

TEST_F(TrainedDrafter, DraftsTheSameInAnyCompany) {
    WatchedDrafter together(*draft_);
    const auto expected = target_.run(some_prompts(), target_.engine_options(kMaxK), &together);

    ModelCase narrow(*find_model(kModel), session().world(), limits(2), trained_taps());
    DraftCase draft(narrow);
    std::mt19937 random(5);
    for (const int32_t rows : {64, 256}) {
        WatchedDrafter watched(*draft);
        EngineOptions options = narrow.engine_options(kMaxK);
        options.max_batched_tokens = rows;
        std::vector<Prompt> prompts = some_prompts();
        std::shuffle(prompts.begin(), prompts.end(), random);
        const auto results = narrow.run(std::move(prompts), options, &watched);
        EXPECT_EQ(watched.drafts(), together.drafts());
        for (size_t i = 0; i < results.size(); ++i) {
            EXPECT_EQ(results[i].tokens, expected[i].tokens) << "record " << i;
            EXPECT_EQ(results[i].acceptance.trace, expected[i].acceptance.trace);
        }
    }
}

TEST_F(TrainedDrafter, LetsKChangeBetweenSteps) {
    const auto plain = target_.run(some_prompts(), target_.engine_options());
    Position position;
    Engine engine(target_.backend(), target_.comm(), position, target_.model(), &*draft_,
                  target_.engine_options(kMaxK));
    for (Prompt& prompt : some_prompts()) engine.submit(std::move(prompt));
    std::mt19937 random(9);
    while (!engine.idle()) {
        engine.set_k(static_cast<int32_t>(random() % (kMaxK + 1)));
        engine.step();
        for (const Generation& result : engine.take_finished()) {
            EXPECT_EQ(result.tokens, plain[static_cast<size_t>(result.prompt_index)].tokens);
        }
    }
}

// Rejected rows leave no trace: keys and values of every visible position are those of a run in
// which nothing was drafted.
TEST_F(TrainedDrafter, KeepsTheContextOfPlainDecoding) {
    constexpr int64_t kWindow = 256;
    for (const Prompt& prompt : some_prompts()) {
        // The last token is never forwarded by plain decoding.
        const int64_t length = std::ssize(prompt.tokens) + kTokens - 1;
        const int64_t first = std::max<int64_t>(0, length - kWindow);
        const int32_t slot = 0;  // a fresh engine gives out the lowest
        target_.run({prompt}, target_.engine_options(0), &*draft_);
        const auto plain = draft_->download_context(slot, first, length);
        target_.run({prompt}, target_.engine_options(kMaxK), &*draft_);
        EXPECT_EQ(draft_->download_context(slot, first, length), plain)
            << "prompt of " << prompt.tokens.size();
    }
}

}  // namespace
}  // namespace quadrille::test
