// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/record_block.h"

#include "kernels/error.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

std::vector<Prompt> samples() {
    std::vector<Prompt> prompts(3);
    prompts[0].index = int64_t{1} << 40;
    prompts[0].tokens = {1, 2, 3};
    prompts[0].options.temperature = 0.7;
    prompts[0].options.stop_tokens = {9, 8};
    prompts[0].options.stop_text = {"", "end", "\xe2\x82\xac"};
    prompts[0].options.ignore_eos = true;
    prompts[0].options.score_from = 7;
    prompts[0].options.seed = -7;
    prompts[1].error = "empty";
    return prompts;
}

TEST(RecordBlock, BringsEveryFieldAcross) {
    const std::vector<Prompt> sent = samples();
    const std::vector<Prompt> received = unpack_records(pack_records(sent));
    ASSERT_EQ(received.size(), sent.size());
    EXPECT_EQ(pack_records(received), pack_records(sent));
    EXPECT_EQ(received[0].index, sent[0].index);
    EXPECT_EQ(received[0].tokens, sent[0].tokens);
    EXPECT_EQ(received[0].options.temperature, 0.7);
    EXPECT_EQ(received[0].options.stop_tokens, sent[0].options.stop_tokens);
    EXPECT_EQ(received[0].options.stop_text, sent[0].options.stop_text);
    EXPECT_TRUE(received[0].options.ignore_eos);
    EXPECT_EQ(received[0].options.score_from, 7);
    EXPECT_EQ(received[0].options.seed, -7);
    EXPECT_EQ(received[1].error, "empty");
}

TEST(RecordBlock, RefusesEveryTruncation) {
    const std::vector<std::byte> whole = pack_records(samples());
    for (size_t size = 0; size < whole.size(); ++size) {
        const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(size));
        EXPECT_THROW(unpack_records(cut), Error) << size << " bytes";
    }
}

}  // namespace
}  // namespace quadrille
