// SPDX-License-Identifier: Apache-2.0
// The step loop with drafts: whatever a drafter says, and whatever K, batch and order are, records
// get the tokens of plain decoding. Drafters here follow scripts; the trained one has tests of its
// own.
#include "tests/support/expect_error.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;
constexpr int32_t kVocabulary = 4096;

ModelLimits limits(int32_t slots = 8) {
    return {.slots = slots, .capacity = 256, .max_rows = 256, .max_block = kMaxK + 1};
}

// The shortest golden prompts, `tokens` each, by index 0, 1, ...
std::vector<Prompt> short_prompts(size_t count, int64_t tokens) {
    std::vector<Prompt> prompts = golden_prompts(tokens);
    std::sort(prompts.begin(), prompts.end(),
              [](auto& a, auto& b) { return a.tokens.size() < b.tokens.size(); });
    prompts.resize(count);
    for (size_t i = 0; i < count; ++i) {
        prompts[i].index = static_cast<int64_t>(i);
        prompts[i].options.ignore_eos = true;
    }
    return prompts;
}

// Something like a draw, the same on every rank and in every order.
uint32_t scramble(int64_t record, int64_t position) {
    std::mt19937 engine(static_cast<uint32_t>(record * 7919 + position));
    return static_cast<uint32_t>(engine());
}

class Speculation : public testing::Test {
  protected:
    static constexpr size_t kRecords = 4;
    static constexpr int64_t kTokens = 24;

    static void SetUpTestSuite() {
        prompts_ = prompts(kTokens);
        target_ = std::make_unique<ModelCase>(*find_model(kModel), session().world(), limits());
        plain_ = target_->run(prompts(kTokens), target_->engine_options());
    }
    static void TearDownTestSuite() { target_.reset(); }

    static std::vector<Prompt> prompts(int64_t tokens) { return short_prompts(kRecords, tokens); }
    static EngineOptions options(int32_t k) { return target_->engine_options(k); }

    // The token plain decoding emits at an absolute position of a record.
    static int32_t truth(int64_t record, int64_t position) {
        const auto at = static_cast<size_t>(record);
        const int64_t index = position - std::ssize(prompts_[at].tokens);
        const std::vector<int32_t>& tokens = plain_[at].tokens;
        return index < std::ssize(tokens) ? tokens[static_cast<size_t>(index)] : 5;
    }
    static int32_t other(int32_t token) { return (token + 1) % kVocabulary; }
    static int32_t oracle(const DraftRequest& request, int32_t place) {
        return truth(request.record, request.position + place);
    }
    static int32_t wrong(const DraftRequest& request, int32_t place) {
        return other(oracle(request, place));
    }
    static int32_t at_random(const DraftRequest& request, int32_t place) {
        return static_cast<int32_t>(scramble(request.record, request.position + place) %
                                    kVocabulary);
    }
    static int32_t half_right(const DraftRequest& request, int32_t place) {
        const bool right = scramble(request.record, request.position + place) % 4 != 0;
        return right ? oracle(request, place) : wrong(request, place);
    }
    // A drafter without an answer.
    static int32_t nothing(const DraftRequest&, int32_t) { return -1; }

    // Emitted tokens are the first of plain decoding, and the statistics add up.
    static void expect_plain(const Generation& result, int64_t tokens, int32_t k) {
        const auto& all = plain_[static_cast<size_t>(result.prompt_index)].tokens;
        EXPECT_EQ(result.tokens, std::vector<int32_t>(all.begin(), all.begin() + tokens))
            << "record " << result.prompt_index << " K " << k;
        const Acceptance& a = result.acceptance;
        int64_t weighted = 0;
        for (size_t j = 0; j < a.histogram.size(); ++j) {
            weighted += static_cast<int64_t>(j) * a.histogram[j];
        }
        EXPECT_EQ(std::accumulate(a.histogram.begin(), a.histogram.end(), int64_t{0}), a.steps);
        EXPECT_EQ(std::accumulate(a.by_position.begin(), a.by_position.end(), int64_t{0}),
                  a.accepted);
        EXPECT_EQ(weighted, a.accepted);
        EXPECT_EQ(std::ssize(a.trace), a.steps);
        EXPECT_EQ(std::ssize(result.tokens), a.emitted + 1);
        EXPECT_LE(a.accepted, a.emitted);
        EXPECT_LE(a.emitted, a.accepted + a.steps);
        EXPECT_LE(a.drafted, a.steps * k);
        EXPECT_LE(a.accepted, a.drafted);
    }

    static std::unique_ptr<ModelCase> target_;
    static std::vector<Generation> plain_;
    static std::vector<Prompt> prompts_;
};

std::unique_ptr<ModelCase> Speculation::target_;
std::vector<Generation> Speculation::plain_;
std::vector<Prompt> Speculation::prompts_;

TEST_F(Speculation, NoDrafterChangesTokensAtAnyK) {
    constexpr int64_t kFew = 9;
    const std::pair<const char*, WatchedDrafter::Script> scripts[] = {
        {"wrong", wrong}, {"random", at_random}, {"half right", half_right}, {"nothing", nothing}};
    for (const auto& [name, script] : scripts) {
        SCOPED_TRACE(name);
        for (int32_t k = 0; k <= kMaxK; ++k) {
            WatchedDrafter drafter(script, kMaxK);
            for (const Generation& result : target_->run(prompts(kFew), options(k), &drafter)) {
                expect_plain(result, kFew, k);
                if (std::string_view(name) == "wrong") {
                    EXPECT_EQ(result.acceptance.accepted, 0);
                    EXPECT_EQ(result.acceptance.steps, kFew - 1);  // accept length 1
                }
            }
            EXPECT_EQ(drafter.proposals() > 0, k > 0);
        }
    }
}

TEST_F(Speculation, AnOracleIsAcceptedWholeAtEveryK) {
    for (int32_t k = 0; k <= kMaxK; ++k) {
        WatchedDrafter drafter(oracle, kMaxK);
        for (const Generation& result : target_->run(prompts(kTokens), options(k), &drafter)) {
            expect_plain(result, kTokens, k);
            // All but the first token in blocks of K + 1; the last block may be cut.
            EXPECT_EQ(result.acceptance.steps, (kTokens - 1 + k) / (k + 1)) << "K " << k;
            EXPECT_EQ(result.acceptance.drafted, result.acceptance.accepted);
            for (size_t step = 0; step + 1 < result.acceptance.trace.size(); ++step) {
                EXPECT_EQ(result.acceptance.trace[step], k);  // accept length K + 1
            }
        }
    }
}

TEST_F(Speculation, KMayChangeBetweenStepsAndRecordsMayComeAndGo) {
    std::mt19937 random(3);
    for (const int32_t slots : {1, 2, 3}) {
        ModelCase target(*find_model(kModel), session().world(), limits(slots));
        WatchedDrafter drafter(half_right, kMaxK);
        Position position;
        Engine engine(target.backend(), target.comm(), position, target.model(), &drafter,
                      target.engine_options(kMaxK));
        std::vector<Prompt> waiting;
        for (size_t i = 0; i < kRecords; ++i) {
            waiting.push_back(prompts(i % 2 == 0 ? kTokens : kTokens / 2)[i]);
        }
        std::shuffle(waiting.begin(), waiting.end(), random);
        std::vector<Generation> results;
        while (!waiting.empty() || !engine.idle()) {
            if (!waiting.empty() && (engine.idle() || random() % 3 == 0)) {
                engine.submit(waiting.back());
                waiting.pop_back();
            }
            engine.set_k(static_cast<int32_t>(random() % (kMaxK + 1)));
            engine.step();
            for (Generation& result : engine.take_finished()) results.push_back(std::move(result));
        }
        ASSERT_EQ(results.size(), kRecords);
        for (const Generation& result : results) {
            expect_plain(result, result.prompt_index % 2 == 0 ? kTokens : kTokens / 2, kMaxK);
            EXPECT_EQ(std::ssize(result.acceptance.histogram), kMaxK + 1);
        }
    }
}

TEST_F(Speculation, ALimitCutsABlock) {
    for (int64_t limit = 1; limit <= 2 * kMaxK + 4; ++limit) {
        WatchedDrafter drafter(oracle, kMaxK);
        for (const Generation& result : target_->run(prompts(limit), options(kMaxK), &drafter)) {
            expect_plain(result, limit, kMaxK);
            EXPECT_EQ(result.finish_reason, FinishReason::length);
            // If r tokens are left, min(K, r) drafts are verified; the last may end the record.
            std::vector<uint8_t> trace;
            for (int64_t left = limit - 1; left > 0;) {
                const int64_t drafted = std::min<int64_t>(kMaxK, left);
                trace.push_back(static_cast<uint8_t>(drafted));
                left -= std::min(left, drafted + 1);
            }
            EXPECT_EQ(result.acceptance.trace, trace) << "limit " << limit;
            const int64_t drafted = std::accumulate(trace.begin(), trace.end(), int64_t{0});
            EXPECT_EQ(result.acceptance.drafted, drafted) << "limit " << limit;
        }
    }
}

TEST_F(Speculation, AFullContextCutsABlock) {
    const std::vector<Prompt> asked = prompts(kTokens);
    for (int64_t room = 1; room <= kMaxK + 3; ++room) {
        ModelLimits tight = limits(1);
        tight.capacity = std::ssize(asked[2].tokens) + room;
        ModelCase target(*find_model(kModel), session().world(), tight);
        for (const bool right : {true, false}) {
            WatchedDrafter drafter(right ? oracle : half_right, kMaxK);
            const auto results = target.run({asked[2]}, target.engine_options(kMaxK), &drafter);
            expect_plain(results.at(0), room, kMaxK);
            EXPECT_EQ(results[0].finish_reason, FinishReason::context);
        }
    }
}

TEST_F(Speculation, AStopInsideABlockEndsTheRecordThere) {
    for (const int32_t k : {2, kMaxK}) {
        for (int64_t at = 1; at < kTokens; at += 5) {
            for (const bool end_token : {false, true}) {
                std::vector<Prompt> asked = prompts(kTokens);
                EngineOptions stopping = options(k);
                stopping.eos = {plain_[1].tokens[static_cast<size_t>(at)]};
                for (Prompt& prompt : asked) {
                    prompt.options.ignore_eos = !end_token;
                    if (!end_token) prompt.options.stop_tokens = stopping.eos;
                }
                WatchedDrafter drafter(oracle, kMaxK);
                for (const Generation& result : target_->run(asked, stopping, &drafter)) {
                    const auto& all = plain_[static_cast<size_t>(result.prompt_index)].tokens;
                    const auto found = std::find(all.begin(), all.end(), stopping.eos[0]);
                    const bool stopped = found != all.end();
                    expect_plain(result, stopped ? found - all.begin() + 1 : kTokens, k);
                    if (!stopped) continue;
                    EXPECT_EQ(result.finish_reason,
                              end_token ? FinishReason::eos : FinishReason::stop);
                    // The oracle is right everywhere: only the stop cuts the last block.
                    const int64_t after = found - all.begin();  // tokens behind the first one
                    const auto last = after % (k + 1);
                    if (last > 0) {
                        EXPECT_EQ(result.acceptance.trace.back(), last);
                    }
                }
            }
        }
    }
}

// Ranks whose drafts differ verify different blocks. Nothing of it need show in the tokens; the
// comparison of ranks finds it.
TEST_F(Speculation, RanksThatDraftApartAreFound) {
    constexpr int64_t kLong = 80;
    const int32_t unlikely = 4090 + session().rank();  // never accepted
    WatchedDrafter drafter([=](const DraftRequest&, int32_t) { return unlikely; }, kMaxK);
    const auto run = [&] { target_->run(short_prompts(1, kLong), options(1), &drafter); };
    if (session().size() == 1) {
        run();
    } else {
        expect_error(ErrorKind::comm, {"rank 1", "drafted"}, run);
    }
}

}  // namespace
}  // namespace quadrille::test
