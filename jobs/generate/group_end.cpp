// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/group_end.h"

#include "runtime/ranks/agree.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

namespace quadrille {

static_assert(std::is_trivially_copyable_v<GroupEnd>);
static_assert(std::is_trivially_copyable_v<Latency>);

std::vector<Latency> gather_latencies(Communicator& world, const std::vector<Latency>& own,
                                      bool several) {
    if (!several) return own;
    std::string bytes(own.size() * sizeof(Latency), '\0');
    std::memcpy(bytes.data(), own.data(), bytes.size());
    std::vector<Latency> all;
    for (const std::string& of_rank : gather_texts(world, bytes)) {
        const size_t before = all.size();
        all.resize(before + of_rank.size() / sizeof(Latency));
        std::memcpy(all.data() + before, of_rank.data(), of_rank.size());
    }
    return all;
}

RunEnd gather_ends(Communicator& world, const GroupEnd& own, int64_t remaining) {
    RunEnd run;
    run.groups.resize(static_cast<size_t>(world.size()));
    world.all_gather_host(run.groups.data(), &own, sizeof own);
    run.left = remaining;
    for (const GroupEnd& group : run.groups) {
        run.stop = std::max(run.stop, group.stop);
        run.left -= group.computed;
        run.errors += group.errors;
        run.done += group.progress;
        run.figures += group.figures;
    }
    return run;
}

}  // namespace quadrille
