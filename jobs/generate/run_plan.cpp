// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/run_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace quadrille {

ModelLimits choose_limits(ModelSession& session, const GenerateOptions& options,
                          const RunShape& shape, int32_t k) {
    session.plan_filtered(draws_filtered(options));
    const auto limits = [&](int64_t slots) {
        return model_limits(slots, shape.capacity, options.max_batched_tokens, k);
    };
    const int64_t slots = most_slots(options, std::max<int64_t>(shape.records, 1));
    return limits(options.max_seqs > 0 ? slots : session.fitting_slots(slots, limits));
}

std::string describe_plan(ModelSession& session, const ModelLimits& limits, int64_t records) {
    const std::string groups = session.group_count() > 1
                                   ? fmt::format(" in {} groups", session.group_count())
                                   : std::string();
    return fmt::format("{} records, {} ranks{}, {} slots of {} tokens, passes of up to {} rows\n",
                       records, session.world().size(), groups, limits.slots, limits.capacity,
                       limits.max_rows) +
           plan_table(session.plan(limits), session.available());
}

}  // namespace quadrille
