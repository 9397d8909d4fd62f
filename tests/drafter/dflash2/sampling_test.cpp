// SPDX-License-Identifier: Apache-2.0
// Sampled runs of the whole engine: coupled draws give the same tokens and log-probabilities for
// every K and drafter, batch, order and number of ranks; rejection, penalties and stop strings
// under speculation.
#include "drafter/dflash2/dflash2.h"
#include "io/results/generation_table.h"
#include "io/text/tokenizer.h"
#include "tests/support/draft_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/watched_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kNew = 20;

ModelLimits limits(int32_t slots = 8) {
    return {.slots = slots, .capacity = 256, .max_rows = 512, .max_block = 8};
}

// A target with the trained drafter.
class Speculating {
  public:
    explicit Speculating(Communicator& comm, int32_t slots = 8)
        : target_(*find_model(kModel), comm, limits(slots), trained_taps()), draft_(target_) {}

    ModelCase& target() { return target_; }
    DFlash2& drafter() { return *draft_; }

  private:
    ModelCase target_;
    DraftCase draft_;
};

// Short prompts, each with options of its own.
std::vector<Prompt> sampled_prompts() {
    std::vector<Prompt> prompts = golden_prompts(kNew);
    std::erase_if(prompts, [](const Prompt& prompt) { return prompt.tokens.size() > 120; });
    if (prompts.size() > 7) prompts.resize(7);
    for (size_t i = 0; i < prompts.size(); ++i) {
        prompts[i].index = static_cast<int64_t>(i);
        RecordOptions& options = prompts[i].options;
        options.ignore_eos = true;
        options.temperature = i == 3 ? 0.0 : 0.6 + 0.1 * static_cast<double>(i);
        options.logprobs = 3;
        if (i % 2 == 1) options.top_p = 0.9;
        if (i % 3 == 1) options.top_k = 40;
        if (i % 4 == 2) options.min_p = 0.02;
        if (i >= 3) options.repetition_penalty = 1.3;
        if (i == 5) options.seed = 123;
    }
    return prompts;
}

void expect_same(const std::vector<Generation>& found, const std::vector<Generation>& expected,
                 const std::string& what) {
    const auto bits = [](const std::vector<float>& values) {
        std::vector<uint32_t> words;
        for (const float value : values) words.push_back(std::bit_cast<uint32_t>(value));
        return words;
    };
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].tokens, expected[i].tokens) << what << ", record " << i;
        EXPECT_EQ(bits(found[i].chosen_logprobs), bits(expected[i].chosen_logprobs)) << what;
        EXPECT_EQ(found[i].top_ids, expected[i].top_ids) << what;
        EXPECT_EQ(bits(found[i].top_logprobs), bits(expected[i].top_logprobs)) << what;
        EXPECT_EQ(found[i].text_end, expected[i].text_end) << what;
        EXPECT_EQ(found[i].finish_reason, expected[i].finish_reason) << what;
    }
}

// The share of steps whose first draft was accepted.
double first_draft_rate(const std::vector<Generation>& results) {
    int64_t steps = 0;
    int64_t first = 0;
    for (const Generation& result : results) {
        steps += result.acceptance.steps;
        first += result.acceptance.by_position.at(0);
    }
    return static_cast<double>(first) / static_cast<double>(steps);
}
// Between what drafts with noise of their own reach here and what these runs reach.
constexpr double kAcceptance = 0.35;

TEST(Sampling, SpeculationChangesNeitherTokensNorLogprobs) {
    Speculating run(session().world());
    ModelCase& target = run.target();
    const auto plain = target.run(sampled_prompts(), target.engine_options());
    for (const Generation& result : plain) {
        EXPECT_EQ(std::ssize(result.tokens), kNew);
        EXPECT_EQ(std::ssize(result.chosen_logprobs), kNew);
        EXPECT_EQ(std::ssize(result.top_ids), 3 * kNew);
    }
    for (int32_t k = 1; k <= 7; ++k) {
        const auto found = target.run(sampled_prompts(), target.engine_options(k), &run.drafter());
        expect_same(found, plain, "K " + std::to_string(k));
        EXPECT_GT(first_draft_rate(found), kAcceptance) << k;
    }
    WatchedDrafter scattered(
        [](const DraftRequest& request, int32_t place) {
            return (request.position * 7 + place * 131) % 4096;
        },
        7);
    expect_same(target.run(sampled_prompts(), target.engine_options(3), &scattered), plain,
                "scattered drafts");
}

TEST(Sampling, BatchOrderAndSlotsChangeNothing) {
    Speculating run(session().world());
    const auto reference =
        run.target().run(sampled_prompts(), run.target().engine_options(2), &run.drafter());
    std::vector<Prompt> shuffled = sampled_prompts();
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
    EngineOptions narrow = run.target().engine_options(2);
    narrow.max_batched_tokens = 64;
    expect_same(run.target().run(shuffled, narrow, &run.drafter()), reference, "shuffled");
    Speculating two(session().world(), 2);
    expect_same(two.target().run(sampled_prompts(), two.target().engine_options(2), &two.drafter()),
                reference, "two slots");
}

TEST(Sampling, RankCountsGiveTheSameTokens) {
    const auto self = make_self_comm();
    for (const AcceptRule accept : {AcceptRule::coupled, AcceptRule::rejection}) {
        std::vector<std::vector<Generation>> results;
        for (Communicator* comm : {&session().world(), self.get()}) {
            Speculating run(*comm);
            EngineOptions options = run.target().engine_options(3);
            options.accept = accept;
            results.push_back(run.target().run(sampled_prompts(), options, &run.drafter()));
        }
        expect_same(results[0], results[1], "ranks");
    }
}

TEST(Sampling, SeedsTellRecordsSamplesAndRunsApart) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    // One prompt as several records, hot enough that two draws hardly agree.
    const Prompt one = sampled_prompts()[0];
    const auto record = [&one](int64_t index, int32_t source, int32_t sample, int64_t seed) {
        Prompt prompt = one;
        prompt.index = index;
        prompt.source = source;
        prompt.sample = sample;
        prompt.options.seed = seed;
        prompt.options.temperature = 1.5;
        return prompt;
    };
    const std::vector<Prompt> prompts = {
        record(0, 0, 0, -1), record(1, 0, 0, -1), record(2, 1, 0, -1), record(3, 0, 1, -1),
        record(4, 0, 0, 5),  record(5, 0, 0, 5),  record(6, 0, 0, 6)};
    const auto first = target.run(prompts, target.engine_options());
    expect_same(target.run(prompts, target.engine_options()), first, "again");
    EXPECT_EQ(first[4].tokens, first[5].tokens);
    for (size_t a = 0; a < first.size(); ++a) {
        for (size_t b = a + 1; b < first.size(); ++b) {
            if (a == 4 && b == 5) continue;
            EXPECT_NE(first[a].tokens, first[b].tokens) << a << " and " << b;
        }
        EXPECT_EQ(first[a].source, prompts[a].source);
        EXPECT_EQ(first[a].sample, prompts[a].sample);
    }
    EngineOptions other = target.engine_options();
    other.seed = 1;
    const auto second = target.run(prompts, other);
    EXPECT_NE(second[0].tokens, first[0].tokens);
    EXPECT_EQ(second[4].tokens, first[4].tokens);  // a seed of its own
}

TEST(Sampling, AHarshPenaltyNeverRepeatsAToken) {
    Speculating run(session().world());
    std::vector<Prompt> prompts = sampled_prompts();
    for (Prompt& prompt : prompts) {
        prompt.options.repetition_penalty = 1e9;
        prompt.options.temperature = prompt.index % 2 == 0 ? 0.0 : 0.2;
    }
    const auto plain = run.target().run(prompts, run.target().engine_options());
    expect_same(run.target().run(prompts, run.target().engine_options(7), &run.drafter()), plain,
                "K 7");
    for (size_t i = 0; i < plain.size(); ++i) {
        std::vector<int32_t> all = plain[i].tokens;
        std::sort(all.begin(), all.end());
        EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << i;
        for (const int32_t token : prompts[i].tokens) {
            EXPECT_FALSE(std::binary_search(all.begin(), all.end(), token)) << i;
        }
    }
}

// Drafts that are the target's own tokens: row i of a block is right only if it is penalised with
// the i drafts before it, which no earlier pass has seen.
TEST(Sampling, APenaltyWithDraftsIsThePenaltyWithout) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    std::vector<Prompt> prompts = sampled_prompts();
    for (size_t i = 0; i < prompts.size(); ++i) {
        RecordOptions& options = prompts[i].options;
        options.repetition_penalty = i % 2 == 0 ? 1e9 : 1.5;
        options.temperature = i < 2 ? 0.0 : i < 4 ? 0.3 : 2.0;
        // Everything, a few candidates, more than the ranks offer.
        options.top_p = i < 3 ? 1.0 : i < 5 ? 0.9 : 0.9999;
        options.top_k = 0;
        options.min_p = 0;
    }
    const auto plain = target.run(prompts, target.engine_options());
    WatchedDrafter oracle(
        [&](const DraftRequest& request, int32_t place) {
            const auto record = static_cast<size_t>(request.record);
            const auto prompt = static_cast<int32_t>(prompts[record].tokens.size());
            const auto at = static_cast<size_t>(request.position - prompt + place);
            const std::vector<int32_t>& tokens = plain[record].tokens;
            return at < tokens.size() ? tokens[at] : -1;
        },
        7);
    for (const int32_t k : {1, 2, 7}) {
        const auto found = target.run(prompts, target.engine_options(k), &oracle);
        expect_same(found, plain, "K " + std::to_string(k));
        for (const Generation& result : found) {
            EXPECT_EQ(result.acceptance.accepted, result.acceptance.drafted) << "K " << k;
        }
    }
}

TEST(Sampling, RejectionKeepsGreedyRecordsAndPlainDraws) {
    Speculating run(session().world());
    ModelCase& target = run.target();
    EngineOptions options = target.engine_options();
    options.accept = AcceptRule::rejection;
    const auto plain = target.run(sampled_prompts(), target.engine_options());
    expect_same(target.run(sampled_prompts(), options), plain, "K 0");
    for (const int32_t k : {2, 7}) {
        options.k = k;
        const auto found = target.run(sampled_prompts(), options, &run.drafter());
        expect_same(target.run(sampled_prompts(), options, &run.drafter()), found, "again");
        EXPECT_EQ(found[3].tokens, plain[3].tokens);  // temperature 0
        EXPECT_NE(found[0].tokens, plain[0].tokens);
        EXPECT_GT(first_draft_rate(found), kAcceptance) << k;
        for (const Generation& result : found) EXPECT_EQ(find_violation(result, k), "");
    }
    // Drafts whose distribution nobody knows count as certain.
    WatchedDrafter scattered(
        [](const DraftRequest& request, int32_t place) {
            return (request.position * 7 + place * 131) % 4096;
        },
        7);
    options.k = 3;
    for (const Generation& result : target.run(sampled_prompts(), options, &scattered)) {
        EXPECT_EQ(std::ssize(result.tokens), kNew);
        EXPECT_EQ(find_violation(result, 3), "");
    }
}

TEST(StopStrings, EndARecordWhereverTheyCrossTokens) {
    if (!text_supported()) GTEST_SKIP() << "built without a tokenizer";
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(*find_model(kModel));
    Speculating run(session().world());
    ModelCase& target = run.target();
    std::vector<Prompt> prompts = sampled_prompts();
    const auto whole = target.run(prompts, target.engine_options());

    // From the middle of token 8 on, two bytes into token 10.
    std::vector<std::string> texts;
    for (size_t i = 0; i < prompts.size(); ++i) {
        std::string text;
        size_t begin = 0;
        size_t end = 0;
        for (size_t t = 0; t < whole[i].tokens.size(); ++t) {
            const std::string bytes = tokenizer->token_bytes(whole[i].tokens[t]);
            if (t == 8) begin = text.size() + bytes.size() / 2;
            if (t == 10) end = text.size() + std::min<size_t>(2, bytes.size());
            text += bytes;
        }
        texts.push_back(text);
        prompts[i].options.stop_text = {"never in the text", text.substr(begin, end - begin)};
    }
    EngineOptions options = target.engine_options();
    options.tokenizer = tokenizer.get();
    const auto plain = target.run(prompts, options);
    for (size_t i = 0; i < plain.size(); ++i) {
        const std::string& stop = prompts[i].options.stop_text[1];
        const size_t begin = texts[i].find(stop);
        EXPECT_EQ(plain[i].finish_reason, FinishReason::stop);
        EXPECT_EQ(plain[i].text_end, static_cast<int64_t>(begin));
        // The tokens that were needed, and no more.
        std::string text;
        size_t count = 0;
        while (text.size() < begin + stop.size()) {
            text += tokenizer->token_bytes(whole[i].tokens[count++]);
        }
        EXPECT_EQ(plain[i].tokens,
                  std::vector<int32_t>(whole[i].tokens.begin(),
                                       whole[i].tokens.begin() + static_cast<int64_t>(count)));
        EXPECT_EQ(plain[i].chosen_logprobs.size(), count);
    }
    for (const int32_t k : {1, 7}) {
        options.k = k;
        const auto found = target.run(prompts, options, &run.drafter());
        expect_same(found, plain, "K " + std::to_string(k));
        for (const Generation& result : found) EXPECT_EQ(find_violation(result, k), "");
    }
    options.tokenizer = nullptr;
    options.k = 0;
    for (const Generation& result : target.run(prompts, options)) {
        EXPECT_EQ(result.status, Status::error);
        EXPECT_NE(result.error.find("stop_text"), std::string::npos);
    }
}

}  // namespace
}  // namespace quadrille::test
