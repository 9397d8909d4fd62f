// SPDX-License-Identifier: Apache-2.0
// Records on their way from the rank that reads them to the ranks that run them: one flat block,
// one broadcast (docs/design.md §4, hop 2).
#pragma once

#include "io/records.h"
#include "runtime/ranks/comm.h"

#include <cstddef>
#include <vector>

namespace quadrille {

std::vector<std::byte> pack_records(const std::vector<Prompt>& prompts);
std::vector<Prompt> unpack_records(const std::vector<std::byte>& block);

// Rank `root` gives its records to all ranks of `comm`; the argument of the others is ignored.
std::vector<Prompt> broadcast_records(Communicator& comm, int root, std::vector<Prompt> prompts);

}  // namespace quadrille
