// SPDX-License-Identifier: Apache-2.0
// Records that a start was stopped in: given back to another engine with what they had emitted,
// they end with the tokens, log-probabilities and statistics of a run that nothing interrupted.
#include "runtime/ranks/record_block.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 3;
constexpr int64_t kTokens = 40;
constexpr size_t kRecords = 4;

ModelLimits limits(int32_t slots, int32_t replay_block) {
    return {.slots = slots,
            .capacity = 256,
            .max_rows = 128,
            .max_block = kMaxK + 1,
            .replay_block = replay_block};
}

// Greedy, drawn with log-probabilities, filtered and penalized.
std::vector<Prompt> asked() {
    std::vector<Prompt> prompts = golden_prompts(kTokens);
    std::ranges::sort(prompts, {}, [](const Prompt& p) { return p.tokens.size(); });
    prompts.resize(kRecords);
    for (size_t i = 0; i < prompts.size(); ++i) {
        prompts[i].index = static_cast<int64_t>(i);
        prompts[i].options.ignore_eos = true;
        prompts[i].options.temperature = i == 0 ? 0.0 : 1.0;
        prompts[i].options.logprobs = i == 1 ? 2 : -1;
        prompts[i].options.top_k = i == 2 ? 40 : 0;
        prompts[i].options.repetition_penalty = i == 3 ? 1.3 : 1.0;
    }
    return prompts;
}

class Replay : public testing::Test {
  protected:
    using Results = std::map<int64_t, Generation>;

    // Mostly right where the target is greedy; the same for a position in every start.
    WatchedDrafter::Script script() const {
        return [this](const DraftRequest& request, int32_t place) -> int32_t {
            const auto at = static_cast<size_t>(request.position + place) -
                            asked_[static_cast<size_t>(request.record)].tokens.size();
            const auto found = truth_.find(request.record);
            if (found == truth_.end() || at >= found->second.tokens.size()) return 7;
            std::minstd_rand random(
                static_cast<uint32_t>(request.record * 1009 + request.position + place));
            random.discard(3);
            return random() % 3 == 0 ? 7 : found->second.tokens[at];
        };
    }

    // Runs `prompts` for `steps` passes at most (-1: to the end); what is left goes to `left`.
    Results run(ModelCase& target, std::vector<Prompt> prompts, int32_t k, int steps,
                std::vector<Prompt>* left = nullptr) const {
        WatchedDrafter drafter(script(), kMaxK);
        Position position;
        Engine engine(target.backend(), target.comm(), position, target.model(),
                      k > 0 ? &drafter : nullptr, target.engine_options(k));
        std::map<int64_t, Prompt> open;
        for (Prompt& prompt : prompts) {
            open[prompt.index] = prompt;
            engine.submit(std::move(prompt));
        }
        Results results;
        for (; !engine.idle() && steps != 0; --steps) {
            engine.step();
            for (Generation& result : engine.take_finished()) {
                open.erase(result.prompt_index);
                results[result.prompt_index] = std::move(result);
            }
        }
        if (left == nullptr) return results;
        for (Generation& result : engine.unfinished()) {
            EXPECT_EQ(result.status, Status::cancelled);
            open.at(result.prompt_index).kept = std::move(result);
        }
        left->clear();
        for (auto& [index, prompt] : open) left->push_back(std::move(prompt));
        return results;
    }

    static void expect_equal(const Results& found, const Results& whole) {
        ASSERT_EQ(found.size(), whole.size());
        for (const auto& [index, result] : found) {
            const Generation& other = whole.at(index);
            SCOPED_TRACE(testing::Message() << "record " << index);
            EXPECT_EQ(result.status, Status::ok);
            EXPECT_EQ(result.finish_reason, other.finish_reason);
            EXPECT_EQ(result.tokens, other.tokens);
            EXPECT_EQ(result.chosen_logprobs, other.chosen_logprobs);
            EXPECT_EQ(result.top_ids, other.top_ids);
            EXPECT_EQ(result.top_logprobs, other.top_logprobs);
            EXPECT_EQ(result.acceptance.steps, other.acceptance.steps);
            EXPECT_EQ(result.acceptance.drafted, other.acceptance.drafted);
            EXPECT_EQ(result.acceptance.accepted, other.acceptance.accepted);
            EXPECT_EQ(result.acceptance.emitted, other.acceptance.emitted);
            EXPECT_EQ(result.acceptance.by_position, other.acceptance.by_position);
            EXPECT_EQ(result.acceptance.histogram, other.acceptance.histogram);
            EXPECT_EQ(result.acceptance.trace, other.acceptance.trace);
        }
    }

    std::vector<Prompt> asked_ = asked();
    Results truth_;
};

TEST_F(Replay, EndsAsARunThatNothingInterrupted) {
    ModelCase plain(*find_model(kModel), session().world(), limits(4, 1));
    truth_ = run(plain, asked_, 0, -1);
    for (const int32_t k : {0, kMaxK}) {
        const Results whole = run(plain, asked_, k, -1);
        for (const int32_t block : {1, 8}) {
            for (const int32_t slots : {1, 3}) {
                SCOPED_TRACE(testing::Message()
                             << "K " << k << " block " << block << " slots " << slots);
                ModelCase target(*find_model(kModel), session().world(), limits(slots, block));
                std::vector<Prompt> left = asked_;
                Results results;
                int starts = 0;
                for (int steps = 13; !left.empty(); steps += 5, ++starts) {
                    // As they reach the ranks.
                    left = unpack_records(pack_records(left));
                    results.merge(run(target, left, k, steps, &left));
                    ASSERT_LT(starts, 40);
                }
                EXPECT_GT(starts, 2);
                expect_equal(results, whole);
            }
        }
    }
}

TEST_F(Replay, TakesAFractionOfThePassesOfTheStartThatIsReplayed) {
    ModelCase target(*find_model(kModel), session().world(), limits(1, 8));
    std::vector<Prompt> left;
    run(target, {asked_[0]}, 0, 34, &left);  // the prompt's pass, then a token each
    ASSERT_EQ(left.size(), 1U);
    ASSERT_EQ(left[0].kept.tokens.size(), 34U);
    // The prompt, 33 rows in blocks of 8, the 6 tokens that are left.
    EXPECT_TRUE(run(target, left, 0, 1 + 5 + 5).empty());
    EXPECT_EQ(run(target, left, 0, 1 + 5 + 6).size(), 1U);
}

}  // namespace
}  // namespace quadrille::test
