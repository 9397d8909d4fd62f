// SPDX-License-Identifier: Apache-2.0
// A run behind a warm-up is the run without one.
#include "runtime/warm_up.h"

#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace quadrille::test {
namespace {

TEST(WarmUp, ChangesNothingOfWhatFollows) {
    std::vector<Prompt> prompts = golden_prompts(12);
    std::ranges::sort(prompts, {}, [](const Prompt& p) { return p.tokens.size(); });
    prompts.resize(3);
    for (Prompt& prompt : prompts) prompt.options.temperature = prompt.index == 1 ? 1.0 : 0.0;
    const ModelLimits limits = {
        .slots = 3, .capacity = 256, .max_rows = 128, .max_block = 1, .replay_block = 1};
    ModelCase target(*find_model("demo-full-4bpw"), session().world(), limits);
    EngineOptions options = target.engine_options(0);
    options.steps = StepWay::whole;
    std::vector<std::map<int64_t, std::vector<int32_t>>> runs;
    for (const bool warm : {false, true}) {
        Position position;
        Engine engine(target.backend(), target.comm(), position, target.model(), nullptr, options);
        if (warm) {
            warm_up(engine, {limits, options.max_batched_tokens, 0, prompts[1].options});
            EXPECT_TRUE(engine.idle());
            EXPECT_TRUE(engine.take_finished().empty());
            EXPECT_EQ(engine.stats().steps, 0);
            EXPECT_EQ(engine.stats().emitted, 0);
        }
        for (const Prompt& prompt : prompts) engine.submit(prompt);
        while (!engine.idle()) engine.step();
        auto& tokens = runs.emplace_back();
        for (const Generation& result : engine.take_finished()) {
            EXPECT_EQ(result.status, Status::ok);
            tokens[result.prompt_index] = result.tokens;
        }
        EXPECT_EQ(tokens.size(), prompts.size());
    }
    EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace quadrille::test
