// SPDX-License-Identifier: Apache-2.0
// Which ranks hold one copy of the model together: a pure function, the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

struct Placement {
    int group = 0;          // groups are numbered by their lowest rank
    int rank_in_group = 0;  // ascending with the rank
    int groups = 1;
    int tp = 1;  // ranks of a group
};

// Placement of every rank. `tp` 0: all ranks form one group. A group keeps to one host as far as
// whole groups fit there; what is left over on each host is joined in the order of the hosts.
// Rank 0 is always rank 0 of group 0. Throws Error{usage} listing the legal sizes: those of 1, 2
// and 4 that divide the number of ranks.
std::vector<Placement> place_ranks(std::span<const std::string> host_of_rank, int64_t tp);

}  // namespace quadrille
