// SPDX-License-Identifier: Apache-2.0
// Where results come from: /provenance of a generations file, and the fingerprint by which a run
// recognises the parts of an earlier one (docs/design.md §5, io/FORMAT.md).
#pragma once

#include "io/h5.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"
#include "jobs/options.h"
#include "kernels/backend.h"
#include "runtime/comm.h"
#include "runtime/mpi.h"

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

std::string utc_now();  // ISO 8601

// What makes two runs the same; `drafter` and `tokenizer` may be nullptr. The number of ranks and
// the batch are not part of it.
h5::Attributes fingerprint(const GenerateOptions& options, const std::vector<std::string>& prompts,
                           const Checkpoint& checkpoint, const Checkpoint* drafter,
                           const Tokenizer* tokenizer, int64_t k, int64_t context,
                           const Backend& backend);

h5::Attributes provenance(const GenerateOptions& options, const std::string& start,
                          const MpiSession& session, const Backend& backend,
                          const Communicator& comm, const Checkpoint& checkpoint,
                          const Checkpoint* drafter, int64_t k, int64_t records_computed);

}  // namespace quadrille
