// SPDX-License-Identifier: Apache-2.0
// A record whose logits are no numbers: its own error says where, and its company keeps every bit,
// whatever K, batch and order are.
#include "kernels/forward_backend.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;
constexpr int64_t kTokens = 12;
constexpr int32_t kPoison = 4000;  // an id that no record emits

// The streams of rows of the token kPoison hold NaN.
class PoisonBackend final : public ForwardBackend {
  public:
    using ForwardBackend::ForwardBackend;

    void embed(View<float> out, const int32_t* tokens, const Matrix& table,
               int32_t copies) override {
        inner().embed(out, tokens, table, copies);
        for (int64_t row = 0; row < out.rows; ++row) {
            if (tokens[row] != kPoison) continue;
            std::fill_n(out.row(row), out.cols, std::numeric_limits<float>::quiet_NaN());
        }
    }
};

class FailingRecord : public testing::Test {
  protected:
    static ModelLimits limits(int32_t slots) {
        return {.slots = slots, .capacity = 256, .max_rows = 256, .max_block = kMaxK + 1};
    }
    static ModelCase make(int32_t slots) {
        return {*find_model(kModel),
                session().world(),
                limits(slots),
                {},
                std::make_unique<PoisonBackend>(make_backend("cpu"))};
    }
    // Greedy, drawn, filtered and penalized records.
    static std::vector<Prompt> sound() {
        std::vector<Prompt> prompts = golden_prompts(kTokens);
        std::ranges::sort(prompts, {}, [](const Prompt& p) { return p.tokens.size(); });
        prompts.resize(4);
        for (size_t i = 0; i < prompts.size(); ++i) {
            prompts[i].index = static_cast<int64_t>(i);
            prompts[i].options.ignore_eos = true;
            prompts[i].options.temperature = i == 0 ? 0.0 : 1.0;
            prompts[i].options.top_k = i == 2 ? 40 : 0;
            prompts[i].options.repetition_penalty = i == 3 ? 1.2 : 1.0;
            prompts[i].options.logprobs = i == 1 ? 2 : -1;
        }
        return prompts;
    }
    // A sound prompt with the poisoned id at its end.
    static Prompt poisoned(int64_t index, const Prompt& like) {
        Prompt prompt = like;
        prompt.index = index;
        prompt.tokens.push_back(kPoison);
        return prompt;
    }
    static void expect_same(const Generation& found, const Generation& alone) {
        EXPECT_EQ(found.status, Status::ok) << found.error;
        EXPECT_EQ(found.tokens, alone.tokens) << "record " << alone.prompt_index;
        EXPECT_EQ(found.chosen_logprobs, alone.chosen_logprobs);
        EXPECT_EQ(found.top_ids, alone.top_ids);
        EXPECT_EQ(found.top_logprobs, alone.top_logprobs);
    }
    static void expect_error_at(const Generation& result, size_t token, int64_t position) {
        EXPECT_EQ(result.status, Status::error);
        EXPECT_EQ(result.finish_reason, FinishReason::error);
        EXPECT_EQ(result.tokens.size(), token);
        EXPECT_EQ(result.error, "token " + std::to_string(token) + " (position " +
                                    std::to_string(position) +
                                    "): no logit of the model is a number");
    }
};

TEST_F(FailingRecord, ChangesNoOtherInAnyBatchAndAtAnyK) {
    std::vector<Generation> alone;
    for (const Prompt& prompt : sound()) {
        ModelCase target = make(1);
        alone.push_back(target.run({prompt}, target.engine_options()).at(0));
    }
    WatchedDrafter::Script always = [](const DraftRequest&, int32_t) { return kPoison; };
    for (const int32_t slots : {1, 2, 5}) {
        ModelCase target = make(slots);
        for (const int32_t k : {0, 1, kMaxK}) {
            std::vector<Prompt> prompts;
            for (const Prompt& prompt : sound()) {  // before and behind every sound record
                prompts.push_back(poisoned(10 + prompt.index, prompt));
                prompts.push_back(prompt);
            }
            WatchedDrafter drafter(always, kMaxK);  // drafts nothing that may be looked at
            for (const Generation& result :
                 target.run(prompts, target.engine_options(k), k > 0 ? &drafter : nullptr)) {
                SCOPED_TRACE(testing::Message() << "slots " << slots << " K " << k);
                if (result.prompt_index < 10) {
                    expect_same(result, alone[static_cast<size_t>(result.prompt_index)]);
                } else {
                    expect_error_at(result, 0, result.prompt_tokens);
                    EXPECT_EQ(result.acceptance.steps, 0);
                }
            }
        }
    }
}

// The streams of rows of one token hold infinity: a record fails behind the place it emits it.
class PoisonLater final : public ForwardBackend {
  public:
    PoisonLater(std::unique_ptr<Backend> inner, int32_t token)
        : ForwardBackend(std::move(inner)), token_(token) {}

    void embed(View<float> out, const int32_t* tokens, const Matrix& table,
               int32_t copies) override {
        inner().embed(out, tokens, table, copies);
        for (int64_t row = 0; row < out.rows; ++row) {
            if (tokens[row] != token_) continue;
            std::fill_n(out.row(row), out.cols, std::numeric_limits<float>::infinity());
        }
    }

  private:
    int32_t token_;
};

// The tokens that were there before stay, and are the same at every K.
TEST_F(FailingRecord, KeepsItsTokensUpToTheFailureAtEveryK) {
    const Prompt prompt = sound()[0];
    ModelCase plain(*find_model(kModel), session().world(), limits(1));
    const std::vector<int32_t> tokens = plain.run({prompt}, plain.engine_options()).at(0).tokens;
    const auto fatal = std::ranges::find_if(tokens.begin() + 3, tokens.end(), [&](int32_t token) {
        return std::ranges::count(tokens, token) == 1 &&
               std::ranges::count(prompt.tokens, token) == 0;
    });
    ASSERT_NE(fatal, tokens.end());
    const auto kept = static_cast<size_t>(fatal - tokens.begin()) + 1;
    ModelCase target(*find_model(kModel), session().world(), limits(1), {},
                     std::make_unique<PoisonLater>(make_backend("cpu"), *fatal));
    for (int32_t k = 0; k <= kMaxK; ++k) {
        WatchedDrafter oracle(
            [&](const DraftRequest& request, int32_t place) {
                const int64_t at = request.position + place - std::ssize(prompt.tokens);
                return at < std::ssize(tokens) ? tokens[static_cast<size_t>(at)] : 0;
            },
            kMaxK);
        const Generation result =
            target.run({prompt}, target.engine_options(k), k > 0 ? &oracle : nullptr).at(0);
        SCOPED_TRACE(testing::Message() << "K " << k);
        expect_error_at(result, kept, result.prompt_tokens + static_cast<int64_t>(kept));
        EXPECT_EQ(result.tokens, std::vector<int32_t>(tokens.begin(), fatal + 1));
        EXPECT_EQ(std::ssize(result.tokens), result.acceptance.emitted + 1);
    }
}

}  // namespace
}  // namespace quadrille::test
