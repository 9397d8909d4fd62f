// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/groups.h"

#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace quadrille {
namespace {

constexpr std::array<int64_t, 3> kSizes = {1, 2, 4};

// "1", "1 or 2", "1, 2 or 4"
std::string list(const std::vector<int64_t>& sizes) {
    const std::string last = fmt::format("{}", sizes.back());
    if (sizes.size() == 1) return last;
    return fmt::format("{} or {}", fmt::join(sizes.begin(), sizes.end() - 1, ", "), last);
}

int checked_size(int64_t ranks, int64_t tp) {
    const int64_t wanted = tp == 0 ? ranks : tp;
    std::vector<int64_t> legal;
    std::ranges::copy_if(kSizes, std::back_inserter(legal),
                         [ranks](int64_t size) { return ranks % size == 0; });
    if (std::ranges::find(legal, wanted) == legal.end()) {
        throw Error(ErrorKind::usage,
                    fmt::format("--tp: expected {} with {} ranks, found {}{}", list(legal), ranks,
                                wanted, tp == 0 ? " (the default: all ranks)" : ""));
    }
    return static_cast<int>(wanted);
}

// Ranks of each host, hosts in the order of their first rank.
std::vector<std::vector<int>> ranks_by_host(std::span<const std::string> host_of_rank) {
    std::vector<std::string> names;
    std::vector<std::vector<int>> ranks;
    for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
        const auto known = std::ranges::find(names, host_of_rank[rank]);
        const auto host = static_cast<size_t>(known - names.begin());
        if (known == names.end()) {
            names.push_back(host_of_rank[rank]);
            ranks.emplace_back();
        }
        ranks[host].push_back(static_cast<int>(rank));
    }
    return ranks;
}

}  // namespace

std::vector<Placement> place_ranks(std::span<const std::string> host_of_rank, int64_t tp) {
    require(!host_of_rank.empty(), "at least one rank to place");
    const int size = checked_size(std::ssize(host_of_rank), tp);

    std::vector<std::vector<int>> groups;
    std::vector<int> left_over;
    const auto cut = [&groups, size](std::span<const int> ranks) {
        for (size_t first = 0; first + static_cast<size_t>(size) <= ranks.size();
             first += static_cast<size_t>(size)) {
            const auto part = ranks.subspan(first, static_cast<size_t>(size));
            groups.emplace_back(part.begin(), part.end());
        }
    };
    for (const std::vector<int>& ranks : ranks_by_host(host_of_rank)) {
        cut(ranks);
        const std::ptrdiff_t rest = std::ssize(ranks) % size;
        left_over.insert(left_over.end(), ranks.end() - rest, ranks.end());
    }
    cut(left_over);
    for (std::vector<int>& group : groups) std::ranges::sort(group);
    std::ranges::sort(groups);

    std::vector<Placement> placements(host_of_rank.size());
    for (size_t group = 0; group < groups.size(); ++group) {
        for (int place = 0; place < size; ++place) {
            const int rank = groups[group][static_cast<size_t>(place)];
            placements[static_cast<size_t>(rank)] = {.group = static_cast<int>(group),
                                                     .rank_in_group = place,
                                                     .groups = static_cast<int>(groups.size()),
                                                     .tp = size};
        }
    }
    return placements;
}

}  // namespace quadrille
