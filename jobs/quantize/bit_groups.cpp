// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/bit_groups.h"

#include "io/text/json.h"
#include "jobs/common/table.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace quadrille {
namespace {

constexpr int64_t kMostBits = 8;
// Proxy errors of matrices of 1024 inputs by bits, mcg, one sweep (docs/performance.md); 8 bits:
// the step from 6 to 7 once more.
constexpr std::array<double, kMostBits + 1> kErrors = {
    1.0, 0.2304, 0.05684, 0.01429, 0.003698, 0.0009726, 0.0002602, 0.0000718, 0.0000198};

double error_at(int64_t bits) {
    return kErrors[static_cast<size_t>(bits)];
}

}  // namespace

double expected_divergence(const BitGroup& group, int64_t bits) {
    return group.divergence * error_at(bits) / error_at(group.measured_bits);
}

void allocate_bits(std::vector<BitGroup>& groups, double bpw) {
    double left = 0;
    for (BitGroup& group : groups) {
        require(group.measured_bits >= 1 && group.measured_bits <= kMostBits, "measured bits");
        group.bits = 1;
        left += (bpw - 1) * static_cast<double>(group.weights);
    }
    for (;;) {
        BitGroup* best = nullptr;
        double most = -std::numeric_limits<double>::infinity();
        for (BitGroup& group : groups) {
            const auto weights = static_cast<double>(group.weights);
            // A mean such as 4.3 is not exact: half a weight is what it may be off by.
            if (group.bits == kMostBits || weights > left + 0.5) continue;
            const double gain = (expected_divergence(group, group.bits) -
                                 expected_divergence(group, group.bits + 1)) /
                                weights;
            if (gain <= most) continue;
            most = gain;
            best = &group;
        }
        if (best == nullptr) return;
        ++best->bits;
        left -= static_cast<double>(best->weights);
    }
}

std::string group_table(const std::vector<BitGroup>& groups) {
    Table table("rlrrrrr");
    table.row({"layer", "class", "weights", "measured at", "KL there", "bits", "KL expected"});
    double sum = 0;
    double bits = 0;
    int64_t weights = 0;
    for (const BitGroup& group : groups) {
        const double expected = expected_divergence(group, group.bits);
        sum += expected;
        bits += static_cast<double>(group.bits * group.weights);
        weights += group.weights;
        table.row({group.layer < 0 ? "" : fmt::to_string(group.layer), name(group.kind),
                   fmt::to_string(group.weights), fmt::to_string(group.measured_bits),
                   fmt::format("{:.6f}", group.divergence), fmt::to_string(group.bits),
                   fmt::format("{:.6f}", expected)});
    }
    const double mean = bits / static_cast<double>(std::max<int64_t>(weights, 1));
    table.row({"", "all", fmt::to_string(weights), "", "", fmt::format("{:.3f}", mean),
               fmt::format("{:.6f}", sum)});
    return table.text();
}

nlohmann::json as_json(const std::vector<BitGroup>& groups) {
    nlohmann::json all = nlohmann::json::array();
    for (const BitGroup& group : groups) {
        all.push_back({{"layer", group.layer},
                       {"class", name(group.kind)},
                       {"weights", group.weights},
                       {"measured_bits", group.measured_bits},
                       {"kl", group.divergence},
                       {"bits", group.bits}});
    }
    return all;
}

std::vector<BitGroup> as_groups(const nlohmann::json& value, const std::string& place) {
    std::vector<BitGroup> groups;
    for (const nlohmann::json& entry : value) {
        const JsonObject object(entry, place);
        BitGroup group{.layer = object.integer("layer", -1, std::numeric_limits<int32_t>::max()),
                       .weights = object.integer("weights", 1, std::numeric_limits<int64_t>::max()),
                       .measured_bits = object.integer("measured_bits", 1, kMostBits),
                       .divergence = object.number("kl", 0, std::numeric_limits<double>::max()),
                       .bits = object.integer("bits", 1, kMostBits)};
        const std::string kind = object.string("class");
        const auto found =
            std::ranges::find_if(kWeightClasses, [&](WeightClass k) { return kind == name(k); });
        if (found == std::end(kWeightClasses)) object.fail("class", "a class of matrices");
        group.kind = *found;
        groups.push_back(group);
    }
    return groups;
}

}  // namespace quadrille
