// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/shard.h"

#include "kernels/error.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

ModelConfig full_size() {
    ModelConfig c;
    c.hidden_size = 4096;
    c.vocab_size = 154880;
    c.num_layers = 2;
    c.intermediate_size = 12288;
    c.moe_intermediate_size = 2048;
    c.num_experts = 288;
    c.num_shared_experts = 1;
    c.num_heads = 64;
    c.v_head_dim = 256;
    c.linear_heads = 64;
    c.linear_head_dim = 128;
    c.attention = {AttentionKind::kda, AttentionKind::mla};
    c.ffn = {FfnKind::dense, FfnKind::moe};
    return c;
}

TEST(BlockShare, GivesTheHeadUnevenSharesOfWholeBlocks) {
    EXPECT_EQ(block_share(154880, 4, 0).size(), 303 * 128);
    EXPECT_EQ(block_share(154880, 4, 1).size(), 303 * 128);
    EXPECT_EQ(block_share(154880, 4, 2).size(), 302 * 128);
    EXPECT_EQ(block_share(154880, 4, 3).size(), 302 * 128);
}

TEST(BlockShare, CoversEveryWidthOnceInOrder) {
    for (const int64_t width : {0, 1, 127, 128, 129, 448, 512, 768, 1000, 154880}) {
        for (int parts = 1; parts <= 9; ++parts) {
            int64_t next = 0;
            int64_t previous = width + 1;
            for (int part = 0; part < parts; ++part) {
                const Range range = block_share(width, parts, part);
                EXPECT_EQ(range.begin, next);
                EXPECT_TRUE(range.begin % kShardBlock == 0 || range.begin == width);
                EXPECT_LE(range.size(), previous);
                previous = range.size();
                next = range.end;
            }
            EXPECT_EQ(next, width);
        }
    }
}

TEST(SegmentShare, JoinsToTheSameSegmentsForEveryRankCount) {
    for (const int64_t width : {448, 512, 640, 1024, 8192, 12288}) {
        for (const int ranks : {1, 2, 4}) {
            int64_t segment = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const SegmentedRange share = segment_share(width, ranks, rank);
                ASSERT_EQ(share.segments, kSegments / ranks);
                EXPECT_EQ(share.segment[0], 0);
                EXPECT_EQ(share.segment.at(static_cast<size_t>(share.segments)),
                          share.range.size());
                for (int s = 0; s < share.segments; ++s, ++segment) {
                    const Range whole = block_share(width, kSegments, static_cast<int>(segment));
                    EXPECT_EQ(share.range.begin + share.segment.at(static_cast<size_t>(s)),
                              whole.begin);
                }
            }
        }
    }
}

TEST(PlanShards, SplitsTheFullModelByHeadAndByChannel) {
    const ShardPlan plan = plan_shards(full_size(), 4, 1);
    EXPECT_EQ(plan.kda_heads.begin, 16);
    EXPECT_EQ(plan.kda_heads.size(), 16);
    EXPECT_EQ(plan.mla_heads.begin, 16);
    EXPECT_EQ(plan.mla_heads.size(), 16);
    EXPECT_EQ(plan.dense.range.begin, 3072);
    EXPECT_EQ(plan.expert.range.size(), 512);
    EXPECT_EQ(plan.shared.range.size(), 512);
    EXPECT_EQ(plan.vocab.begin, 303 * 128);
}

TEST(PlanShards, RefusesRankCountsAndNamesEveryDimension) {
    EXPECT_EQ(shard_violations(full_size(), 3).size(), 1u);
    ModelConfig small = full_size();
    small.moe_intermediate_size = 128;  // one block
    small.linear_heads = 2;
    EXPECT_TRUE(shard_violations(small, 1).empty());
    const auto violations = shard_violations(small, 4);
    ASSERT_EQ(violations.size(), 2u);
    EXPECT_NE(violations[0].find("KDA heads"), std::string::npos);
    EXPECT_NE(violations[1].find("moe_intermediate_size"), std::string::npos);
    try {
        plan_shards(small, 4, 0);
        FAIL() << "4 ranks were accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("legal: 1"), std::string::npos);
    }
}

TEST(PlanShards, KeepsHeadsWhole) {
    ModelConfig config = full_size();
    config.num_heads = 5;  // 10 blocks: segments of 3, 3, 2, 2 cut heads of 2 blocks
    const auto violations = shard_violations(config, 4);
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_NE(violations[0].find("MLA heads"), std::string::npos);
}

TEST(KnownIds, AreThoseOfThePartBelowTheFirstUnknownOne) {
    const Range part{.begin = 128, .end = 256};
    EXPECT_EQ(known_ids(part, 1000), 128);
    EXPECT_EQ(known_ids(part, 256), 128);
    EXPECT_EQ(known_ids(part, 130), 2);
    EXPECT_EQ(known_ids(part, 128), 0);
    EXPECT_EQ(known_ids(part, 5), 0);
}

}  // namespace
}  // namespace quadrille
