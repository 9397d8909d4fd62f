// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/group_end.h"

#include <algorithm>
#include <type_traits>

namespace quadrille {

static_assert(std::is_trivially_copyable_v<GroupEnd>);

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
        run.stats += group.stats;
    }
    return run;
}

}  // namespace quadrille
