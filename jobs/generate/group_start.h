// SPDX-License-Identifier: Apache-2.0
// How the groups of a run come to share its records.
#pragma once

#include "jobs/common/model_session.h"
#include "jobs/generate/group_board.h"
#include "jobs/generate/member_files.h"
#include "jobs/generate/run_files.h"

#include <optional>

namespace quadrille {

// Every group must see the files that the run's leader sees, wherever its host has them; then each
// joins the run. `files`: of a leader, else nullptr; `member`: of one that does not lead the run.
// Collective over all ranks.
void join_groups(ModelSession& session, RunFiles* files, MemberFiles* member, const RunShape& shape,
                 bool dry_run);

// Collective. Open MPI without UCX has no one-sided calls between hosts that a program with threads
// may use: Error{comm}.
void make_board(ModelSession& session, std::optional<GroupBoard>& board);

}  // namespace quadrille
