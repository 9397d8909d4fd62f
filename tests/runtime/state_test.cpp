// SPDX-License-Identifier: Apache-2.0
// State after drafting, rejecting and committing is the state of plain decoding, bit for bit: KDA
// state and convolution inputs, latents, whole pools; and so are the logits of accepted rows.
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace quadrille::test {
namespace {

constexpr const char* kModel = "demo-full-4bpw";
constexpr int32_t kMaxK = 7;
constexpr int32_t kVocabulary = 4096;

using States = std::vector<std::vector<float>>;

// The longest golden prompt, read as one text whose next tokens are known.
class DeferredCommit : public testing::Test {
  protected:
    DeferredCommit()
        : target_(*find_model(kModel), session().world(),
                  {.slots = 4, .capacity = 1024, .max_rows = 512, .max_block = kMaxK + 1}),
          batch_(target_.backend(), 64, 4) {
        for (const Prompt& prompt : golden_prompts(1)) {
            if (prompt.tokens.size() > text_.size()) text_ = prompt.tokens;
        }
    }

    void read(int32_t slot, int32_t length) {
        target_.prefill(slot, std::span(text_).first(static_cast<size_t>(length)), 512);
    }
    // Logits of every row of a block that starts at `position`: the text's own tokens in the first
    // `right` rows, others behind them.
    std::vector<float> decode(int32_t slot, int32_t position, int32_t pending, int32_t size,
                              int32_t right) {
        std::vector<int32_t> block;
        for (int32_t i = 0; i < size; ++i) {
            const int32_t token = text_[static_cast<size_t>(position + i)];
            block.push_back(i < right ? token : (token + 1 + i) % kVocabulary);
        }
        batch_.clear(false);
        batch_.add(slot, position, pending, block, Logits::all);
        return target_.forward(batch_);
    }
    States flushed(int32_t slot, int32_t length, int32_t pending) {
        target_.model().flush(slot, pending, length == pending);
        return target_.model().download_state(slot, length);
    }
    // Plain decoding of the positions [first, last): logits and flushed state after each.
    void decode_plainly(int32_t slot, int32_t first, int32_t last) {
        read(slot, first);
        for (int32_t at = first; at < last; ++at) {
            logits_[at] = decode(slot, at, 0, 1, 1);
            states_[at + 1] = flushed(slot, at + 1, 1);
        }
    }
    void expect_logits(const std::vector<float>& block, int32_t position, int32_t rows) {
        for (int32_t i = 0; i < rows; ++i) {
            const auto row = block.begin() + int64_t{i} * kVocabulary;
            EXPECT_TRUE(std::equal(row, row + kVocabulary, logits_.at(position + i).begin()))
                << "logits of position " << position + i;
        }
    }
    void expect_state(const States& found, int32_t length) {
        const States& expected = states_.at(length);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t layer = 0; layer < found.size(); ++layer) {
            EXPECT_EQ(found[layer], expected[layer]) << "layer " << layer << " after " << length;
        }
    }

    ModelCase target_;
    StepBatch batch_;
    std::vector<int32_t> text_;
    std::map<int32_t, std::vector<float>> logits_;
    std::map<int32_t, States> states_;
};

TEST_F(DeferredCommit, EveryAcceptLengthLeavesThePlainState) {
    // Starts on every place of a pool of four, so that blocks begin, end and straddle there.
    constexpr int32_t kFirst = 20;
    decode_plainly(0, kFirst, kFirst + 4 + kMaxK + 1);
    for (int32_t start = kFirst; start < kFirst + 4; ++start) {
        for (int32_t accepted = 0; accepted <= kMaxK; ++accepted) {
            SCOPED_TRACE(testing::Message() << "start " << start << " accepted " << accepted);
            read(1, start);
            const std::vector<float> logits = decode(1, start, 0, kMaxK + 1, accepted + 1);
            expect_logits(logits, start, accepted + 1);
            const int32_t length = start + accepted + 1;
            expect_state(flushed(1, length, accepted + 1), length);
        }
    }
}

// Blocks of changing size and acceptance, one after the other without a flush between them, from
// below the sparse limit (515 tokens) to beyond it.
TEST_F(DeferredCommit, RunsOfBlocksCrossTheSparseLimit) {
    constexpr int32_t kFirst = 505;
    constexpr int32_t kLast = 540;
    decode_plainly(0, kFirst, kLast);
    std::mt19937 random(11);
    for (int32_t round = 0; round < 4; ++round) {
        read(1, kFirst);
        int32_t position = kFirst;
        int32_t pending = 0;
        while (position + kMaxK + 1 < kLast) {
            const auto size = static_cast<int32_t>(1 + random() % (kMaxK + 1));
            const auto accepted = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
            const std::vector<float> logits = decode(1, position, pending, size, accepted + 1);
            expect_logits(logits, position, accepted + 1);
            pending = accepted + 1;
            position += pending;
        }
        expect_state(flushed(1, position, pending), position);
    }
}

// A slot that held another record, and a record with nothing committed before its first block.
TEST_F(DeferredCommit, AFreshRecordForgetsTheSlotsLast) {
    read(2, 40);
    decode(2, 40, 0, kMaxK + 1, kMaxK + 1);
    for (int32_t accepted = 0; accepted <= kMaxK; accepted += 3) {
        read(3, 8);  // something else lies in this slot, with pending rows
        decode(3, 8, 0, 3, 3);
        const std::vector<float> first = decode(2, 0, 0, kMaxK + 1, accepted + 1);
        const int32_t length = accepted + 1;
        const States found = flushed(2, length, length);
        for (int32_t at = 0; at < length; ++at) {
            const std::vector<float> plain = decode(3, at, at == 0 ? 0 : 1, 1, 1);
            EXPECT_TRUE(
                std::equal(plain.begin(), plain.end(), first.begin() + int64_t{at} * kVocabulary));
        }
        EXPECT_EQ(flushed(3, length, 1), found) << "accepted " << accepted;
    }
}

}  // namespace
}  // namespace quadrille::test
