// SPDX-License-Identifier: Apache-2.0
// Placement of ranks into groups: legal sizes, hosts kept together, rank 0 first.
#include "runtime/ranks/groups.h"

#include "kernels/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quadrille {
namespace {

using Hosts = std::vector<std::string>;

std::vector<int> groups_of(const Hosts& hosts, int64_t tp) {
    std::vector<int> groups;
    for (const Placement& place : place_ranks(hosts, tp)) groups.push_back(place.group);
    return groups;
}

std::string usage_error(size_t ranks, int64_t tp) {
    try {
        place_ranks(Hosts(ranks, "a"), tp);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    ADD_FAILURE() << ranks << " ranks accepted with tp " << tp;
    return {};
}

TEST(Groups, AllRanksFormOneGroupByDefault) {
    for (const size_t ranks : {1u, 2u, 4u}) {
        const auto places = place_ranks(Hosts(ranks, "a"), 0);
        for (size_t rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(places[rank].group, 0);
            EXPECT_EQ(places[rank].rank_in_group, static_cast<int>(rank));
            EXPECT_EQ(places[rank].groups, 1);
            EXPECT_EQ(places[rank].tp, static_cast<int>(ranks));
        }
    }
}

TEST(Groups, ConsecutiveRanksOfOneHostStayTogether) {
    EXPECT_EQ(groups_of(Hosts(8, "a"), 4), (std::vector{0, 0, 0, 0, 1, 1, 1, 1}));
    EXPECT_EQ(groups_of(Hosts(6, "a"), 2), (std::vector{0, 0, 1, 1, 2, 2}));
    EXPECT_EQ(groups_of(Hosts(3, "a"), 1), (std::vector{0, 1, 2}));
}

TEST(Groups, RoundRobinPlacementIsUndone) {
    // mpirun --map-by node: neighbours in rank are on different hosts.
    EXPECT_EQ(groups_of({"a", "b", "a", "b", "a", "b", "a", "b"}, 4),
              (std::vector{0, 1, 0, 1, 0, 1, 0, 1}));
    const auto places = place_ranks(Hosts{"a", "b", "a", "b"}, 2);
    EXPECT_EQ(places[2].rank_in_group, 1);
    EXPECT_EQ(places[3].rank_in_group, 1);
    EXPECT_EQ(places[0].groups, 2);
}

TEST(Groups, OneRankAHostGroupsNeighbours) {
    EXPECT_EQ(groups_of({"a", "b", "c", "d", "e", "f", "g", "h"}, 4),
              (std::vector{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(Groups, WhatIsLeftOverOnHostsIsJoined) {
    // Six ranks on each of two hosts: a whole group on each, one group across.
    Hosts hosts(6, "a");
    hosts.resize(12, "b");
    EXPECT_EQ(groups_of(hosts, 4), (std::vector{0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1}));
}

TEST(Groups, RankZeroLeadsGroupZero) {
    const auto places = place_ranks(Hosts{"x", "y", "y", "x", "z", "z", "z", "z"}, 4);
    EXPECT_EQ(places[0].group, 0);
    EXPECT_EQ(places[0].rank_in_group, 0);
}

TEST(Groups, EveryPlaceIsTakenOnce) {
    const Hosts hosts = {"a", "b", "b", "c", "a", "b", "c", "c", "a", "d", "d", "d"};
    for (const int64_t tp : {1, 2, 4}) {
        std::vector<std::vector<int>> taken(hosts.size() / static_cast<size_t>(tp),
                                            std::vector<int>(static_cast<size_t>(tp), 0));
        for (const Placement& place : place_ranks(hosts, tp)) {
            ++taken.at(static_cast<size_t>(place.group))
                  .at(static_cast<size_t>(place.rank_in_group));
        }
        for (const auto& group : taken) EXPECT_EQ(group, std::vector<int>(group.size(), 1));
    }
}

TEST(Groups, OtherSizesListTheLegalOnes) {
    EXPECT_EQ(usage_error(3, 0), "--tp: expected 1 with 3 ranks, found 3 (the default: all ranks)");
    EXPECT_EQ(usage_error(16, 0),
              "--tp: expected 1, 2 or 4 with 16 ranks, found 16 (the default: all ranks)");
    EXPECT_EQ(usage_error(4, 3), "--tp: expected 1, 2 or 4 with 4 ranks, found 3");
    EXPECT_EQ(usage_error(6, 4), "--tp: expected 1 or 2 with 6 ranks, found 4");
    EXPECT_EQ(usage_error(2, 4), "--tp: expected 1 or 2 with 2 ranks, found 4");
    EXPECT_EQ(usage_error(4, -1), "--tp: expected 1, 2 or 4 with 4 ranks, found -1");
    EXPECT_EQ(usage_error(4, int64_t{1} << 32),
              "--tp: expected 1, 2 or 4 with 4 ranks, found 4294967296");
}

}  // namespace
}  // namespace quadrille
