// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/shard.h"

#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace quadrille {

SegmentedRange segment_share(int64_t width, int ranks, int rank) {
    require(ranks == 1 || ranks == 2 || ranks == 4, "1, 2 or 4 ranks");
    SegmentedRange share;
    share.segments = kSegments / ranks;
    const int first = rank * share.segments;
    share.range = {block_share(width, kSegments, first).begin,
                   block_share(width, kSegments, first + share.segments - 1).end};
    for (int s = 0; s <= share.segments; ++s) {
        const int64_t bound =
            s < share.segments ? block_share(width, kSegments, first + s).begin : share.range.end;
        share.segment.at(static_cast<size_t>(s)) = bound - share.range.begin;
    }
    return share;
}

namespace {

struct Width {
    const char* what;
    int64_t channels;
    int64_t unit;  // channels that must stay together
};

std::vector<Width> split_widths(const ModelConfig& c) {
    std::vector<Width> widths;
    const auto has = [](const auto& kinds, auto kind) {
        return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
    };
    if (has(c.attention, AttentionKind::kda)) {
        widths.push_back({"KDA heads", c.linear_heads * c.linear_head_dim, c.linear_head_dim});
    }
    if (has(c.attention, AttentionKind::mla)) {
        widths.push_back({"MLA heads", c.num_heads * c.v_head_dim, c.v_head_dim});
    }
    if (has(c.ffn, FfnKind::dense)) {
        widths.push_back({"intermediate_size", c.intermediate_size, 1});
    }
    if (has(c.ffn, FfnKind::moe)) {
        widths.push_back({"moe_intermediate_size", c.moe_intermediate_size, 1});
    }
    return widths;
}

}  // namespace

std::vector<std::string> shard_violations(const ModelConfig& config, int ranks) {
    std::vector<std::string> lines;
    if (ranks != 1 && ranks != 2 && ranks != 4) {
        lines.push_back(fmt::format("{} ranks: a model is split over 1, 2 or 4", ranks));
        return lines;
    }
    for (const Width& width : split_widths(config)) {
        for (int rank = 0; rank < ranks; ++rank) {
            const Range range = segment_share(width.channels, ranks, rank).range;
            const bool whole = range.begin % width.unit == 0 && range.end % width.unit == 0;
            if (range.size() > 0 && whole) continue;
            lines.push_back(fmt::format(
                "{}: {} channels in blocks of {} and units of {} do not divide over {} ranks",
                width.what, width.channels, kShardBlock, width.unit, ranks));
            break;
        }
    }
    if (block_share(config.vocab_size, ranks, ranks - 1).size() <= 0) {
        lines.push_back(
            fmt::format("vocab_size: {} tokens in blocks of {} do not divide over {} ranks",
                        config.vocab_size, kShardBlock, ranks));
    }
    return lines;
}

ShardPlan plan_shards(const ModelConfig& config, int ranks, int rank) {
    const std::vector<std::string> violations = shard_violations(config, ranks);
    if (!violations.empty()) {
        std::vector<int> legal;
        for (const int count : {1, 2, 4}) {
            if (shard_violations(config, count).empty()) legal.push_back(count);
        }
        throw Error(ErrorKind::usage,
                    fmt::format("this model cannot be split over {} ranks (legal: {}): {}", ranks,
                                fmt::join(legal, ", "), fmt::join(violations, "; ")));
    }
    ShardPlan plan;
    plan.rank = rank;
    plan.ranks = ranks;
    plan.kda = segment_share(config.linear_heads * config.linear_head_dim, ranks, rank);
    plan.mla = segment_share(config.num_heads * config.v_head_dim, ranks, rank);
    plan.dense = segment_share(config.intermediate_size, ranks, rank);
    plan.expert = segment_share(config.moe_intermediate_size, ranks, rank);
    plan.shared =
        segment_share(config.moe_intermediate_size * config.num_shared_experts, ranks, rank);
    plan.vocab = block_share(config.vocab_size, ranks, rank);
    if (config.linear_head_dim > 0) {
        plan.kda_heads = {plan.kda.range.begin / config.linear_head_dim,
                          plan.kda.range.end / config.linear_head_dim};
    }
    if (config.v_head_dim > 0) {
        plan.mla_heads = {plan.mla.range.begin / config.v_head_dim,
                          plan.mla.range.end / config.v_head_dim};
    }
    return plan;
}

int32_t known_ids(const Range& vocab, int64_t known) {
    return static_cast<int32_t>(std::clamp<int64_t>(known - vocab.begin, 0, vocab.size()));
}

}  // namespace quadrille
