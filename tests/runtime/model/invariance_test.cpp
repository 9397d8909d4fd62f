// SPDX-License-Identifier: Apache-2.0
// One arithmetic per row, through the whole model: what a record computes does not depend on
// chunks, company, slots, order or the number of ranks. Compared bit for bit.
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";

ModelLimits limits() {
    return {.slots = 8, .capacity = 1024, .max_rows = 768, .max_block = 1};
}

std::vector<Prompt> some_prompts() {
    std::vector<Prompt> prompts = golden_prompts(8);
    for (Prompt& prompt : prompts) prompt.options.ignore_eos = true;
    return prompts;
}

TEST(Invariance, ChunksOfAPromptDoNotChangeItsLogits) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    const std::vector<Prompt> prompts = golden_prompts(1);
    const auto longest = std::max_element(prompts.begin(), prompts.end(), [](auto& a, auto& b) {
        return a.tokens.size() < b.tokens.size();
    });
    const std::vector<float> whole = target.prefill(0, longest->tokens, 768);
    for (const int32_t chunk : {64, 320}) {
        EXPECT_EQ(target.prefill(3, longest->tokens, chunk), whole) << "chunks of " << chunk;
    }
}

TEST(Invariance, BatchOrderAndSlotsDoNotChangeTokens) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    EngineOptions options = target.engine_options();
    const std::vector<Generation> reference = target.run(some_prompts(), options);
    std::mt19937 random(7);
    for (const int32_t rows : {64, 192}) {
        options.max_batched_tokens = rows;
        std::vector<Prompt> prompts = some_prompts();
        std::shuffle(prompts.begin(), prompts.end(), random);
        const std::vector<Generation> shuffled = target.run(std::move(prompts), options);
        ASSERT_EQ(shuffled.size(), reference.size());
        for (size_t i = 0; i < reference.size(); ++i) {
            EXPECT_EQ(shuffled[i].tokens, reference[i].tokens) << "record " << i;
        }
    }
    ModelLimits one = limits();
    one.slots = 1;
    ModelCase alone(*find_model(kModel), session().world(), one);
    const std::vector<Generation> single = alone.run(some_prompts(), alone.engine_options());
    for (size_t i = 0; i < reference.size(); ++i) {
        EXPECT_EQ(single[i].tokens, reference[i].tokens) << "record " << i;
    }
}

// Logits of a prefill and of three decode steps of company, on `comm`.
std::vector<float> fingerprint(Communicator& comm) {
    ModelCase target(*find_model(kModel), comm, limits());
    const std::vector<Prompt> prompts = golden_prompts(1);
    std::vector<float> all;
    const auto keep = [&](const std::vector<float>& logits) {
        all.insert(all.end(), logits.begin(), logits.end());
    };
    for (int32_t slot = 0; slot < 4; ++slot) {
        keep(target.prefill(slot, prompts[static_cast<size_t>(slot)].tokens, 64));
    }
    StepBatch batch(target.backend(), 64, 8);
    for (int32_t step = 0; step < 3; ++step) {
        batch.clear(false);
        for (int32_t slot = 0; slot < 4; ++slot) {
            const auto length =
                static_cast<int32_t>(prompts[static_cast<size_t>(slot)].tokens.size());
            const int32_t token = 100 + 10 * step + slot;
            batch.add(slot, length + step, step == 0 ? 0 : 1, {&token, 1}, Logits::all);
        }
        keep(target.forward(batch));
    }
    return all;
}

TEST(Invariance, RankCountsGiveTheSameBits) {
    const std::vector<float> reference = fingerprint(*make_self_comm());
    for (const int ranks : {2, 4}) {
        if (session().world().size() < ranks) continue;
        const bool member = session().world().rank() < ranks;
        const auto group = session().split(member ? 0 : 1, session().rank());
        if (!member) continue;
        EXPECT_EQ(fingerprint(*group), reference) << ranks << " ranks";
    }
}

TEST(Invariance, FlushedStateIsThatOfPlainPrefill) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    const std::vector<int32_t> tokens = golden_prompts(1)[2].tokens;
    const auto n = static_cast<int32_t>(tokens.size());
    target.prefill(0, tokens, 64);
    const auto expected = target.model().download_state(0, n);

    const int32_t split = n - 5;
    target.prefill(1, std::span(tokens).first(static_cast<size_t>(split)), 64);
    StepBatch batch(target.backend(), 8, 1);
    for (int32_t at = split; at < n; ++at) {
        batch.clear(false);
        batch.add(1, at, at == split ? 0 : 1, {&tokens[static_cast<size_t>(at)], 1}, Logits::none);
        target.forward(batch);
    }
    target.model().flush(1, 1, false);
    EXPECT_EQ(target.model().download_state(1, n), expected);
}

TEST(Engine, ReportsAPromptThatFillsTheContextAndRunsTheRest) {
    ModelLimits tight = limits();
    tight.capacity = 48;
    ModelCase target(*find_model(kModel), session().world(), tight);
    std::vector<Prompt> prompts = golden_prompts(1000);
    for (Prompt& prompt : prompts) prompt.options.ignore_eos = true;
    const std::vector<Prompt> copies = prompts;
    const std::vector<Generation> results = target.run(prompts, target.engine_options());
    ASSERT_EQ(results.size(), copies.size());
    for (size_t i = 0; i < results.size(); ++i) {
        const int64_t length = std::ssize(copies[i].tokens);
        if (length >= tight.capacity) {
            EXPECT_EQ(results[i].status, Status::error);
            EXPECT_NE(results[i].error.find(std::to_string(length)), std::string::npos);
            EXPECT_TRUE(results[i].tokens.empty());
        } else {
            EXPECT_EQ(results[i].finish_reason, FinishReason::context);
            EXPECT_EQ(std::ssize(results[i].tokens), tight.capacity - length);
        }
    }
}

TEST(Engine, EndsAtAStopTokenAndKeepsIt) {
    ModelCase target(*find_model(kModel), session().world(), limits());
    std::vector<Prompt> prompts = golden_prompts(14);
    std::erase_if(prompts, [](const Prompt& prompt) { return prompt.tokens.size() > 100; });
    for (size_t i = 0; i < prompts.size(); ++i) prompts[i].index = static_cast<int64_t>(i);
    const std::vector<Generation> free_run = target.run(prompts, target.engine_options());
    for (size_t i = 0; i < prompts.size(); ++i) {
        if (free_run[i].tokens.size() > 10) {
            prompts[i].options.stop_tokens = {free_run[i].tokens[10]};
        }
    }
    const std::vector<Generation> stopped = target.run(prompts, target.engine_options());
    for (size_t i = 0; i < prompts.size(); ++i) {
        if (free_run[i].tokens.size() <= 10) continue;
        const auto& tokens = free_run[i].tokens;
        const auto first = std::find(tokens.begin(), tokens.end(), tokens[10]);
        EXPECT_EQ(stopped[i].tokens, std::vector<int32_t>(tokens.begin(), first + 1));
        EXPECT_EQ(stopped[i].finish_reason, FinishReason::stop);
    }
}

}  // namespace
}  // namespace quadrille::test
