// SPDX-License-Identifier: Apache-2.0
#include "runtime/accept.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quadrille {
namespace {

using Tokens = std::vector<int32_t>;

StepOutcome run(const Tokens& drafts, const Tokens& target, const EndRule& rule) {
    return mark_accepted(drafts, target, rule);
}

EndRule left(int64_t tokens) {
    EndRule rule;
    rule.tokens_left = tokens;
    return rule;
}

TEST(MarkAccepted, StopsAtTheFirstDraftThatIsNotTheTargetsOwn) {
    const StepOutcome outcome = run({5, 6, 9}, {5, 6, 7, 8}, left(100));
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.emitted, 3);  // 5 6 and the target's 7
    EXPECT_EQ(outcome.finish, FinishReason::none);
}

TEST(MarkAccepted, AddsTheBonusTokenWhenAllDraftsHold) {
    const StepOutcome outcome = run({5, 6}, {5, 6, 7}, left(100));
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.emitted, 3);
}

TEST(MarkAccepted, EndsWithAnErrorBeforeATokenThatTheTargetHasNot) {
    const StepOutcome outcome = run({5, 6, 7}, {5, 6, -1, 8}, left(100));
    EXPECT_EQ(outcome.emitted, 2);
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.finish, FinishReason::error);
    EXPECT_EQ(run({}, {-1}, left(100)).finish, FinishReason::error);
    EXPECT_EQ(run({}, {-1}, left(100)).emitted, 0);
}

TEST(MarkAccepted, TakesNoDraftOfNothingForATargetOfNothing) {
    const StepOutcome outcome = run({-1, 6}, {-1, 6, 7}, left(100));
    EXPECT_EQ(outcome.emitted, 0);
    EXPECT_EQ(outcome.finish, FinishReason::error);
}

TEST(MarkAccepted, HeedsNoMissingTokenThatIsNotEmitted) {
    const StepOutcome rejected = run({5, 6}, {4, -1, -1}, left(100));
    EXPECT_EQ(rejected.emitted, 1);
    EXPECT_EQ(rejected.finish, FinishReason::none);
    const StepOutcome full = run({5, 6}, {5, 6, -1}, left(2));
    EXPECT_EQ(full.emitted, 2);
    EXPECT_EQ(full.finish, FinishReason::length);
}

TEST(MarkAccepted, EmitsOneTokenWithoutDrafts) {
    const StepOutcome outcome = run({}, {4}, left(100));
    EXPECT_EQ(outcome.accepted, 0);
    EXPECT_EQ(outcome.emitted, 1);
}

TEST(MarkAccepted, LetsADraftSupplyTheLastTokenWithoutABonus) {
    const StepOutcome outcome = run({5, 6}, {5, 6, 7}, left(2));
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.emitted, 2);
    EXPECT_EQ(outcome.finish, FinishReason::length);
}

TEST(MarkAccepted, NamesTheContextWhenThatIsWhatEndsTheRecord) {
    EndRule rule = left(1);
    rule.context_bound = true;
    EXPECT_EQ(run({}, {4}, rule).finish, FinishReason::context);
}

TEST(MarkAccepted, DoesNotCountDraftsBehindAnEndToken) {
    const Tokens eos = {6};
    EndRule rule = left(100);
    rule.eos = eos;
    const StepOutcome outcome = run({5, 6, 7}, {5, 6, 7, 8}, rule);
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.emitted, 2);
    EXPECT_EQ(outcome.finish, FinishReason::eos);
}

TEST(MarkAccepted, EndsOnAStopTokenThatIsTheTargetsOwn) {
    const Tokens stop = {7};
    EndRule rule = left(100);
    rule.stop = stop;
    const StepOutcome outcome = run({5, 6, 9}, {5, 6, 7, 8}, rule);
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_EQ(outcome.emitted, 3);
    EXPECT_EQ(outcome.finish, FinishReason::stop);
}

TEST(MarkAccepted, PrefersEosOverLengthForTheSameToken) {
    const Tokens eos = {4};
    EndRule rule = left(1);
    rule.eos = eos;
    EXPECT_EQ(run({}, {4}, rule).finish, FinishReason::eos);
}

TEST(CountStep, KeepsTheIdentitiesOfTheSchema) {
    Acceptance acceptance;
    acceptance.by_position.resize(3);
    acceptance.histogram.resize(4);
    const std::vector<StepOutcome> outcomes = {
        {3, 4, FinishReason::none}, {0, 1, FinishReason::none}, {2, 2, FinishReason::length}};
    for (const StepOutcome& outcome : outcomes) count_step(acceptance, 3, outcome);
    EXPECT_EQ(acceptance.steps, 3);
    EXPECT_EQ(acceptance.drafted, 9);
    EXPECT_EQ(acceptance.accepted, 5);
    EXPECT_EQ(acceptance.emitted, 7);
    EXPECT_EQ(acceptance.by_position, (std::vector<int64_t>{2, 2, 1}));
    EXPECT_EQ(acceptance.histogram, (std::vector<int64_t>{1, 0, 1, 1}));
    EXPECT_EQ(acceptance.trace, (std::vector<uint8_t>{3, 0, 2}));
}

}  // namespace
}  // namespace quadrille
