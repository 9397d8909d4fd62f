// SPDX-License-Identifier: Apache-2.0
// Observed rows against the passes whose rows they stand for, bit for bit: Engine's prefill and
// passes of one sequence whose rows all want logits; and against the golden last logits.
#include "runtime/teacher_forcing.h"

#include "tests/support/golden.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kRows = 256;  // of the largest pass
constexpr int64_t kVocabulary = 4096;

struct RowValues {
    std::vector<float> taps, hidden, logits;  // logits of all ranks joined
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void append(std::vector<float>& to, const std::vector<float>& values) {
    to.insert(to.end(), values.begin(), values.end());
}

std::span<const float> last_row(const std::vector<float>& rows, int64_t width) {
    return std::span(rows).last(static_cast<size_t>(width));
}

class TeacherForcingTest : public testing::Test {
  protected:
    TeacherForcingTest()
        : target_(*find_model(kModel), session().world(),
                  {.slots = 4, .capacity = 1024, .max_rows = kRows, .max_block = kRows / 4},
                  {1, 3, 4, 6}) {
        for (const Prompt& prompt : golden_prompts(1)) prompts_.push_back(prompt.tokens);
    }

    std::vector<RowValues> observe(const TeacherForcingOptions& options) {
        TeacherForcing forcing(target_.backend(), position_, target_.model(), options);
        std::vector<RowValues> seen(prompts_.size());
        const std::vector<TeacherForcing::Tokens> sequences(prompts_.begin(), prompts_.end());
        forcing.run(sequences, [&](const ObservedRows& rows) {
            RowValues& values = seen[static_cast<size_t>(rows.sequence)];
            const int64_t before = std::ssize(values.hidden) / target_.config().hidden_size;
            EXPECT_EQ(rows.position, before) << "sequence " << rows.sequence;
            largest_ = std::max(largest_, rows.logits.rows);
            append(values.taps, target_.download(rows.taps));
            append(values.hidden, target_.download(rows.hidden));
            append(values.logits, target_.join_logits(rows.logits));
        });
        return seen;
    }

    // Every sequence alone, all its rows through the passes' own head.
    std::vector<RowValues> alone() {
        std::vector<RowValues> values;
        StepBatch batch(target_.backend(), kRows, 1);
        for (const std::vector<int32_t>& tokens : prompts_) {
            RowValues& rows = values.emplace_back();
            for (size_t at = 0; at < tokens.size(); at += kRows) {
                const size_t take = std::min<size_t>(kRows, tokens.size() - at);
                batch.clear(true);
                batch.add(0, static_cast<int32_t>(at), 0, std::span(tokens).subspan(at, take),
                          Logits::all);
                append(rows.logits, target_.forward(batch));
                append(rows.hidden, target_.download(target_.model().hidden()));
                append(rows.taps, target_.download(target_.model().taps()));
            }
        }
        return values;
    }

    void expect_same(const std::vector<RowValues>& found, const std::vector<RowValues>& expected) {
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(same_bits(found[i].taps, expected[i].taps)) << "taps of " << i;
            EXPECT_TRUE(same_bits(found[i].hidden, expected[i].hidden)) << "hidden of " << i;
            EXPECT_TRUE(same_bits(found[i].logits, expected[i].logits)) << "logits of " << i;
        }
    }

    ModelCase target_;
    Position position_;
    std::vector<std::vector<int32_t>> prompts_;
    int64_t largest_ = 0;  // rows of logits shown at once
};

TEST_F(TeacherForcingTest, RowsHaveTheBitsOfTheirSequenceAloneHoweverTheyAreCut) {
    const std::vector<RowValues> expected = alone();
    expect_same(observe({.max_batched_tokens = kRows}), expected);
    expect_same(observe({.max_batched_tokens = kPrefillGrid}), expected);
    largest_ = 0;
    const int64_t ranks = target_.comm().size();
    expect_same(observe({.max_batched_tokens = kRows, .logit_bytes = 17 * kVocabulary * 4 / ranks}),
                expected);
    EXPECT_EQ(largest_, 17);
}

TEST_F(TeacherForcingTest, LastLogitsAgreeWithTheGoldens) {
    const std::vector<RowValues> seen = observe({.max_batched_tokens = kRows});
    const GoldenArray<float> expected =
        Golden(data_path("demo_golden.h5")).read<float>("/full-4bpw/last_logits");
    for (size_t i = 0; i < seen.size(); ++i) {
        const std::span<const float> golden(expected.values.data() + i * kVocabulary, kVocabulary);
        EXPECT_LE(largest_difference(last_row(seen[i].logits, kVocabulary), golden), kGoldenLogits)
            << "prompt " << i;
    }
}

TEST_F(TeacherForcingTest, RowsHaveTheBitsOfTheEnginesPrefill) {
    const std::vector<RowValues> seen = observe({.max_batched_tokens = kRows});
    Engine engine(target_.backend(), target_.comm(), position_, target_.model(), nullptr,
                  target_.engine_options());
    const TargetModel& model = target_.model();
    for (size_t i = 0; i < prompts_.size(); ++i) {
        Prompt prompt;
        prompt.tokens = prompts_[i];
        prompt.options.max_new_tokens = 1;
        engine.submit(prompt);
        while (!engine.idle()) engine.step();  // its last pass is the prompt's last chunk
        const std::vector<float> taps = target_.download(model.taps());
        EXPECT_TRUE(same_bits(taps, last_row(seen[i].taps, std::ssize(taps)))) << "prompt " << i;
        const std::vector<float> hidden = target_.download(model.hidden());
        EXPECT_TRUE(same_bits(hidden, last_row(seen[i].hidden, std::ssize(hidden))))
            << "prompt " << i;
        const std::span<const float> logits = last_row(seen[i].logits, kVocabulary);
        const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        EXPECT_EQ(engine.take_finished().at(0).tokens.at(0), best) << "prompt " << i;
    }
}

TEST_F(TeacherForcingTest, WithoutLogitsTheRestIsTheSame) {
    prompts_.resize(3);
    prompts_.insert(prompts_.begin() + 1, std::vector<int32_t>());  // no rows
    std::vector<RowValues> expected = observe({.max_batched_tokens = kRows});
    EXPECT_TRUE(expected[1].hidden.empty());
    for (RowValues& values : expected) values.logits.clear();
    largest_ = 0;
    expect_same(observe({.max_batched_tokens = kRows, .logits = false}), expected);
    EXPECT_EQ(largest_, 0);
}

TEST_F(TeacherForcingTest, RefusesASequenceBeyondTheCapacity) {
    prompts_ = {std::vector<int32_t>(1025, 1)};
    EXPECT_THROW(observe({.max_batched_tokens = kRows}), Error);
}

}  // namespace
}  // namespace quadrille::test
