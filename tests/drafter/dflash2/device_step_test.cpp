// SPDX-License-Identifier: Apache-2.0
// A decode step as one sequence of work gives what a step in parts gives, bit for bit: tokens,
// drafts and statistics, for every K, in every bucket, greedy and drawn, on one rank and on
// several. Recording is played by a backend that keeps the work itself; a GPU has the real one.
#include "runtime/device_step.h"

#include "kernels/forward_backend.h"
#include "tests/support/draft_case.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;

TEST(StepBucket, IsTheNextOfFewSizesWithinTheSlots) {
    const std::vector<std::pair<int32_t, int32_t>> expected = {
        {1, 1},   {2, 2},   {3, 3},   {4, 4},   {5, 6},   {6, 6},   {7, 8},   {8, 8},   {9, 12},
        {12, 12}, {13, 16}, {17, 24}, {25, 32}, {33, 48}, {49, 64}, {65, 96}, {97, 100}};
    for (const auto& [sequences, bucket] : expected) {
        EXPECT_EQ(step_bucket(sequences, 100), bucket) << sequences;
    }
    EXPECT_EQ(step_bucket(5, 5), 5);
    EXPECT_EQ(step_bucket(4096, 4096), 4096);
    EXPECT_THROW(step_bucket(0, 4), Error);
    EXPECT_THROW(step_bucket(5, 4), Error);
}

// Keeps what it is asked to record and does it at every replay.
class KeepingBackend final : public ForwardBackend {
  public:
    explicit KeepingBackend(const std::string& name) : ForwardBackend(make_backend(name)) {}
    bool records() const override { return true; }
    std::unique_ptr<Recording> record(const std::function<void()>& work) override {
        ++recordings;
        return std::make_unique<Kept>(work);
    }
    int recordings = 0;

  private:
    struct Kept final : Recording {
        explicit Kept(std::function<void()> kept) : work(std::move(kept)) {}
        void replay() override { work(); }
        std::function<void()> work;
    };
};

// A communicator that says it can be recorded.
class KeepingComm final : public Communicator {
  public:
    explicit KeepingComm(Communicator& comm) : comm_(comm) {}
    std::string name() const override { return comm_.name(); }
    int rank() const override { return comm_.rank(); }
    int size() const override { return comm_.size(); }
    void all_gather(void* out, const void* in, int64_t bytes) override {
        comm_.all_gather(out, in, bytes);
    }
    void all_to_all(void* out, const void* in, int64_t bytes) override {
        comm_.all_to_all(out, in, bytes);
    }
    void broadcast_host(void* data, int64_t bytes, int root) override {
        comm_.broadcast_host(data, bytes, root);
    }
    void all_gather_host(void* out, const void* in, int64_t bytes) override {
        comm_.all_gather_host(out, in, bytes);
    }
    int64_t max_host(int64_t value) override { return comm_.max_host(value); }
    void barrier() override { comm_.barrier(); }
    bool recordable() const override { return true; }

  private:
    Communicator& comm_;
};

ModelLimits limits(int32_t slots) {
    return {.slots = slots, .capacity = 360, .max_rows = 320, .max_block = kMaxK + 1};
}

// Records of unequal lengths, so that a run passes through the buckets: some end inside a block,
// some at an end token. `warmest`: temperatures up to this, 0 for every third.
std::vector<Prompt> some_prompts(double warmest) {
    std::vector<Prompt> prompts = golden_prompts(20);
    prompts.resize(9);
    for (size_t i = 0; i < prompts.size(); ++i) {
        RecordOptions& options = prompts[i].options;
        prompts[i].index = static_cast<int64_t>(i);
        options.max_new_tokens = 3 + 2 * static_cast<int64_t>(i);
        options.ignore_eos = i % 2 == 0;
        options.temperature = i % 3 == 0 ? 0.0 : warmest;
    }
    return prompts;
}

void expect_same(const std::vector<Generation>& found, const std::vector<Generation>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].tokens, expected[i].tokens) << "record " << i;
        EXPECT_EQ(found[i].finish_reason, expected[i].finish_reason) << "record " << i;
        EXPECT_EQ(found[i].acceptance.trace, expected[i].acceptance.trace) << "record " << i;
        EXPECT_EQ(found[i].acceptance.drafted, expected[i].acceptance.drafted) << "record " << i;
    }
}

class WholeSteps : public testing::Test {
  protected:
    explicit WholeSteps(std::unique_ptr<Backend> backend = make_backend("cpu"), int32_t slots = 7)
        : target_(*find_model(kModel), session().world(), limits(slots), trained_taps(),
                  std::move(backend)),
          draft_(target_) {}

    std::vector<Generation> run(StepWay way, int32_t k, double warmest) {
        EngineOptions options = target_.engine_options(k);
        options.steps = way;
        return target_.run(some_prompts(warmest), options, &*draft_);
    }

    ModelCase target_;
    DraftCase draft_;
};

TEST_F(WholeSteps, GiveWhatStepsInPartsGive) {
    for (const int32_t k : {0, 2, kMaxK}) {
        SCOPED_TRACE(k);
        expect_same(run(StepWay::whole, k, 0.0), run(StepWay::in_parts, k, 0.0));
    }
}

TEST_F(WholeSteps, DrawWhatStepsInPartsDraw) {
    for (const int32_t k : {0, 3}) {
        SCOPED_TRACE(k);
        expect_same(run(StepWay::whole, k, 1.0), run(StepWay::in_parts, k, 1.0));
    }
}

TEST_F(WholeSteps, GiveWayWhereARecordNeedsTheHost) {
    const auto run = [&](StepWay way) {
        EngineOptions options = target_.engine_options(2);
        options.steps = way;
        std::vector<Prompt> prompts = some_prompts(0.7);
        prompts[1].options.top_p = 0.9;
        prompts[2].options.repetition_penalty = 1.3;
        prompts[4].options.logprobs = 2;
        return target_.run(std::move(prompts), options, &*draft_);
    };
    const auto found = run(StepWay::whole);
    const auto expected = run(StepWay::in_parts);
    expect_same(found, expected);
    EXPECT_EQ(found[4].top_ids, expected[4].top_ids);
    EXPECT_EQ(found[4].chosen_logprobs, expected[4].chosen_logprobs);
}

TEST_F(WholeSteps, LetKChangeBetweenSteps) {
    const auto expected = run(StepWay::in_parts, 0, 0.0);
    Position position;
    EngineOptions options = target_.engine_options(kMaxK);
    options.steps = StepWay::whole;
    Engine engine(target_.backend(), target_.comm(), position, target_.model(), &*draft_, options);
    for (Prompt& prompt : some_prompts(0.0)) engine.submit(std::move(prompt));
    std::mt19937 random(9);
    std::vector<Generation> found(expected.size());
    while (!engine.idle()) {
        engine.set_k(static_cast<int32_t>(random() % (kMaxK + 1)));
        engine.step();
        for (Generation& one : engine.take_finished()) {
            found[static_cast<size_t>(one.prompt_index)] = std::move(one);
        }
    }
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
}

class RecordedSteps : public testing::Test {
  protected:
    KeepingComm comm_{session().world()};
};

TEST_F(RecordedSteps, RecordEachShapeOnceAndGiveTheSame) {
    auto made = std::make_unique<KeepingBackend>("cpu");
    KeepingBackend& backend = *made;
    ModelCase target(*find_model(kModel), comm_, limits(7), trained_taps(), std::move(made));
    DraftCase draft(target);
    EngineOptions options = target.engine_options(2);
    options.steps = StepWay::in_parts;
    const auto expected = target.run(some_prompts(0.0), options, &*draft);
    EXPECT_EQ(backend.recordings, 0);

    options.steps = StepWay::recorded;
    Position position;
    Engine engine(target.backend(), target.comm(), position, target.model(), &*draft, options);
    const auto run = [&] {
        std::vector<Generation> found(expected.size());
        for (Prompt& prompt : some_prompts(0.0)) engine.submit(std::move(prompt));
        while (!engine.idle()) {
            engine.step();
            for (Generation& one : engine.take_finished()) {
                found[static_cast<size_t>(one.prompt_index)] = std::move(one);
            }
        }
        return found;
    };
    expect_same(run(), expected);
    expect_same(run(), expected);
    const int64_t decoded = engine.stats().decode_steps;
    const int64_t recorded = engine.stats().recorded_steps;
    EXPECT_GT(recorded, 0);
    EXPECT_LT(recorded, decoded);      // the first of every shape is not
    EXPECT_LE(backend.recordings, 6);  // buckets of 7 slots: 1 2 3 4 6 7
    engine.clear_stats();
    expect_same(run(), expected);
    EXPECT_EQ(engine.stats().recorded_steps, engine.stats().decode_steps)
        << "a third run meets nothing for the first time";
}

// The same with graphs of a GPU.
TEST(GpuSteps, RecordedOnesGiveWhatStepsInPartsGive) {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
    if (session().world().size() > 1) GTEST_SKIP() << "one rank";
    ModelCase target(*find_model(kModel), session().world(), limits(7), trained_taps(), "cuda");
    DraftCase draft(target);
    for (const double warmest : {0.0, 1.0}) {
        for (const int32_t k : {0, 2, kMaxK}) {
            SCOPED_TRACE(k);
            EngineOptions options = target.engine_options(k);
            options.steps = StepWay::in_parts;
            const auto expected = target.run(some_prompts(warmest), options, &*draft);
            for (const StepWay way : {StepWay::whole, StepWay::recorded}) {
                options.steps = way;
                expect_same(target.run(some_prompts(warmest), options, &*draft), expected);
            }
        }
    }
}

// The judge looks at every op of padded steps.
TEST(CheckedSteps, PassTheJudge) {
    if (session().world().size() > 1) GTEST_SKIP() << "one rank";
    ModelLimits few = limits(5);
    few.capacity = 64;
    few.max_rows = 64;
    ModelCase target(*find_model(kModel), session().world(), few, trained_taps(), "check");
    DraftCase draft(target);
    const auto run = [&](StepWay way) {
        EngineOptions options = target.engine_options(2);
        options.max_batched_tokens = 64;
        options.steps = way;
        std::vector<Prompt> prompts = golden_prompts(4);
        std::erase_if(prompts, [](const Prompt& prompt) { return prompt.tokens.size() > 40; });
        prompts.resize(5);
        for (size_t i = 0; i < prompts.size(); ++i) {
            prompts[i].index = static_cast<int64_t>(i);
            prompts[i].options.max_new_tokens = 2 + static_cast<int64_t>(i);
        }
        return target.run(std::move(prompts), options, &*draft);
    };
    expect_same(run(StepWay::whole), run(StepWay::in_parts));
}

}  // namespace
}  // namespace quadrille::test
