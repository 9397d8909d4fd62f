// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/bit_groups.h"

#include "kernels/error.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <vector>

namespace quadrille {
namespace {

std::vector<BitGroup> groups_of(const std::vector<double>& divergences, int64_t weights = 1000) {
    std::vector<BitGroup> groups;
    for (size_t i = 0; i < divergences.size(); ++i) {
        groups.push_back({.layer = static_cast<int64_t>(i),
                          .weights = weights,
                          .measured_bits = 3,
                          .divergence = divergences[i]});
    }
    return groups;
}

std::vector<int64_t> bits_of(const std::vector<BitGroup>& groups) {
    std::vector<int64_t> bits;
    for (const BitGroup& group : groups) bits.push_back(group.bits);
    return bits;
}

double expected(const std::vector<BitGroup>& groups) {
    double sum = 0;
    for (const BitGroup& group : groups) sum += expected_divergence(group, group.bits);
    return sum;
}

// The least sum that any bits of no more than `spent` in all have, by trying them all.
double least(std::vector<BitGroup>& groups, size_t at, int64_t spent) {
    if (at == groups.size()) return expected(groups);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t bits = 1; bits <= std::min<int64_t>(8, spent); ++bits) {
        groups[at].bits = bits;
        best = std::min(best, least(groups, at + 1, spent - bits));
    }
    return best;
}

TEST(BitGroups, NoOtherBitsOfTheSameSizeAreBetter) {
    for (const double bpw : {1.0, 1.25, 2.0, 2.5, 4.0, 5.25}) {
        std::vector<BitGroup> groups = groups_of({0.02, 0.0003, 0.09, 0.004});
        allocate_bits(groups, bpw);
        std::vector<BitGroup> other = groups;
        EXPECT_DOUBLE_EQ(expected(groups), least(other, 0, static_cast<int64_t>(4 * bpw))) << bpw;
    }
}

TEST(BitGroups, EqualOnesGetTheSameBits) {
    std::vector<BitGroup> groups = groups_of({0.01, 0.01, 0.01});
    for (const int64_t bits : {1, 2, 4, 8}) {
        allocate_bits(groups, static_cast<double>(bits));
        EXPECT_EQ(bits_of(groups), std::vector<int64_t>(3, bits));
    }
}

TEST(BitGroups, TheMeanIsKeptAndUsedUpForGroupsOfAnySize) {
    for (const double bpw : {1.7, 2.0, 3.3, 4.05, 7.9}) {
        std::vector<BitGroup> groups = groups_of({0.02, 0.0003, 0.09, 0.004, 0.03});
        for (size_t i = 0; i < groups.size(); ++i) {
            groups[i].weights = 128 * (1 + 7 * static_cast<int64_t>(i));
        }
        allocate_bits(groups, bpw);
        double weights = 0;
        double bits = 0;
        for (const BitGroup& group : groups) {
            weights += static_cast<double>(group.weights);
            bits += static_cast<double>(group.bits * group.weights);
        }
        EXPECT_LE(bits, bpw * weights + 0.5);
        for (const BitGroup& group : groups) {  // none fits any more
            EXPECT_TRUE(group.bits == 8 ||
                        bits + static_cast<double>(group.weights) > bpw * weights);
        }
    }
}

TEST(BitGroups, BitsGoWhereTheOutputSuffers) {
    std::vector<BitGroup> groups = groups_of({0.1, 0.0001, 0.1, 0.1});
    allocate_bits(groups, 3);
    const std::vector<int64_t> bits = bits_of(groups);
    EXPECT_EQ(*std::ranges::min_element(bits), bits[1]);
    EXPECT_GE(groups[0].bits, 3);
    // What does the same harm at more bits does more of it at the same ones.
    std::vector<BitGroup> finer = groups_of({0.01, 0.01, 0.01, 0.01});
    finer[2].measured_bits = 5;
    allocate_bits(finer, 3.25);
    EXPECT_EQ(bits_of(finer), (std::vector<int64_t>{3, 3, 4, 3}));
}

TEST(BitGroups, AFileOfThemIsReadAsItWasWritten) {
    std::vector<BitGroup> groups = groups_of({0.02, 1.0 / 3});
    groups.push_back({.kind = WeightClass::head, .weights = 5, .measured_bits = 6, .bits = 4});
    allocate_bits(groups, 2);
    const auto read = as_groups(nlohmann::json::parse(as_json(groups).dump()), "bits.json");
    EXPECT_EQ(as_json(read), as_json(groups));
    EXPECT_EQ(read[2].kind, WeightClass::head);
}

TEST(BitGroups, AForeignFileIsRefused) {
    const nlohmann::json good = as_json(groups_of({0.02}))[0];
    const auto refused = [&](const char* key, const nlohmann::json& value) {
        nlohmann::json bad = good;
        bad["bits"] = 2;
        bad[key] = value;
        try {
            as_groups(nlohmann::json::array({bad}), "bits.json");
        } catch (const Error& error) {
            return error.kind() == ErrorKind::input &&
                   std::string(error.what()).find(key) != std::string::npos;
        }
        return false;
    };
    EXPECT_TRUE(refused("class", "embedding"));
    EXPECT_TRUE(refused("bits", 9));
    EXPECT_TRUE(refused("kl", -1.0));
    EXPECT_TRUE(refused("weights", 0));
}

}  // namespace
}  // namespace quadrille
