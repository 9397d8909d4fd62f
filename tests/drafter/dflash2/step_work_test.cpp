// SPDX-License-Identifier: Apache-2.0
// The floor of a whole step, against numbers worked out by hand from the shapes of the full model
// and the vendor's drafter.
#include "drafter/dflash2/step_work.h"

#include "tests/support/full_model.h"

#include <gtest/gtest.h>

#include <string>

namespace quadrille::test {
namespace {

constexpr Storage kTwoBits = {.bits = 2, .codebook = Codebook::mcg, .dtype = Dtype::f16};

// Routed experts of 2 bits, the rest BF16, and the drafter in BF16.
StepModel full_model(int ranks, DraftPlacement placement = DraftPlacement::sharded) {
    StepModel model;
    model.config = full_config();
    model.storage = [](const std::string& module) -> std::optional<Storage> {
        if (module.find("qkv_proj") != std::string::npos) return std::nullopt;
        return module.find(".experts.") == std::string::npos ? Storage{} : kTwoBits;
    };
    model.plan = plan_shards(model.config, ranks, 0);
    model.draft = full_draft_config();
    model.draft_storage = [](const std::string&) -> std::optional<Storage> { return Storage{}; };
    model.draft_plan = plan_draft(*model.draft, placement, ranks, 0);
    return model;
}

TEST(StepFloor, WithoutDraftsIsThatOfTheTarget) {
    const auto sums = sums_by_kind(step_work(full_model(4), {.contexts = {5}, .k = 0}));
    EXPECT_EQ(sums.count(WorkKind::draft), 0u);
    EXPECT_EQ(sums.count(WorkKind::draft_head), 0u);
    EXPECT_EQ(sums.count(WorkKind::draft_context), 0u);
}

TEST(StepFloor, ReadsTheHeadTwice) {
    const auto sums = sums_by_kind(step_work(full_model(2), {.contexts = {5}, .k = 2}));
    const double head = 2.0 * 77440 * 4096;
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::head).weights, head + 4 * 4096);
    // The selector: its projection, and for 2 slots one row before and 16 behind.
    EXPECT_DOUBLE_EQ(sums.at(WorkKind::draft_head).weights,
                     head + 2.0 * 256 * 4096 + 2 * 17 * 2.0 * 256);
}

// All of the drafter's 1,171,080,448 parameters but the codebooks, of which only rows are read;
// norms and base kernels are kept in fp32, keys and values are projected from block and context.
TEST(StepFloor, ReadsEveryParameterOfTheDrafter) {
    const auto sums = sums_by_kind(step_work(full_model(1), {.contexts = {0}, .k = 2}));
    const double matrices =
        5.0 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 12288 * 4096 + 2 * 1024 * 4096) +
        20480.0 * 4096 + 256.0 * 4096;
    const double vectors = 5.0 * (2 * 4096 + 2 * 128 + 2 * 4 * 4096) + 2 * 4096;
    EXPECT_DOUBLE_EQ(matrices + vectors + 2 * 154880.0 * 256, 1171080448.0);

    const double read = sums.at(WorkKind::draft).weights - 2.0 * 8 * 4096 +
                        sums.at(WorkKind::draft_context).weights +
                        sums.at(WorkKind::draft_head).weights - 2.0 * 154880 * 4096 -
                        2 * 17 * 2.0 * 256;
    const double again = 5.0 * (2.0 * 2 * 1024 * 4096 + 4 * 128);
    EXPECT_DOUBLE_EQ(read, 2 * matrices + 4 * vectors + again);
}

TEST(StepFloor, DraftsSeeTheirWindow) {
    const StepModel model = full_model(1);
    const auto state = [&](std::vector<int64_t> contexts) {
        return sums_by_kind(step_work(model, {.contexts = std::move(contexts), .k = 7}))
            .at(WorkKind::draft)
            .state;
    };
    EXPECT_DOUBLE_EQ(state({100}), 5.0 * 4 * 2 * 1024 * 100);
    EXPECT_DOUBLE_EQ(state({100, 5000}), 5.0 * 4 * 2 * 1024 * (100 + 2048));
}

TEST(StepFloor, ShardedLayersAreReadInShares) {
    const StepShape shape = {.contexts = {100}, .k = 2};
    const auto draft = [&](const StepModel& model) {
        return sums_by_kind(step_work(model, shape)).at(WorkKind::draft).weights;
    };
    const double whole = draft(full_model(1));
    EXPECT_DOUBLE_EQ(draft(full_model(4, DraftPlacement::replicated)), whole);
    EXPECT_LT(draft(full_model(4)), 0.32 * whole);  // convolutions and norms stay whole
    EXPECT_GT(draft(full_model(4)), 0.25 * whole);
}

// The estimate of docs/performance.md, goals: two H200, K = 2, batch 1: about 5.7 ms, of which 100
// collectives of 10 us are 1.0 ms.
TEST(StepFloor, OfTheFullModelOnTwoGpusIsTheKnownEstimate) {
    const auto ops = step_work(full_model(2), {.contexts = {1000}, .k = 2});
    MachineRates rates{.read = 4.4e12, .decode = {{kTwoBits, 5.2e12}}};
    EXPECT_NEAR(floor_seconds(ops, rates), 4.75e-3, 0.15e-3);
    // Records that choose the same experts in half of their slots read fewer of them.
    const auto overlap = step_work(full_model(2), {.contexts = {1000}, .k = 2, .overlap = 0.5});
    EXPECT_LT(floor_seconds(overlap, rates), 4.2e-3);
}

TEST(StepFloor, PrefillWritesTheContextOnlyWhereItDrafts) {
    const StepModel model = full_model(4);
    const auto with = sums_by_kind(prefill_work(model, 512, {0}, true));
    const auto without = sums_by_kind(prefill_work(model, 512, {0}, false));
    EXPECT_EQ(without.count(WorkKind::draft_context), 0u);
    EXPECT_GT(with.at(WorkKind::draft_context).weights, 2.0 * 5 * 4096 * 4096);
    EXPECT_EQ(with.count(WorkKind::draft), 0u);
    // One row of logits, every expert.
    EXPECT_DOUBLE_EQ(with.at(WorkKind::head).activations, 4.0 * (5 * 4096 + 38784));
    EXPECT_NEAR(with.at(WorkKind::experts).decoded, 42.0 * 288 * 25165824 / 4, 1e6);
}

}  // namespace
}  // namespace quadrille::test
