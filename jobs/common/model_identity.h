// SPDX-License-Identifier: Apache-2.0
// The files that decide a token, by their digests: what ranks compare before they read weights, and
// what tells a run from another (io/FORMAT.md).
#pragma once

#include "io/checkpoint/safetensors.h"
#include "io/h5/h5.h"

#include <span>
#include <string>

namespace quadrille {

// A digest a field, "" for a file that is not there: config.json, generation_config.json,
// tokenizer.json, chat_template.jinja, the drafter's config.json, and the weights of both
// (Checkpoint::digest). `drafter` may be nullptr. Error{io}.
h5::Attributes model_identity(const Checkpoint& target, const Checkpoint* drafter);

// What may slow ranks down or make them hang where it differs, and changes no result: versions of
// MPI, HDF5 and of `libraries` ("NCCL 2.28.9"), and the variables of NCCL, UCX and Open MPI that a
// user sets. What a launcher sets for each rank, and NCCL_HOSTID, are left out.
h5::Attributes surroundings(std::span<const std::string> libraries);

// A field a line, "name value".
std::string field_lines(const h5::Attributes& fields);

// A table of the fields that ranks have otherwise than each other, a line for each value with the
// hosts and ranks that have it; "" where all are equal. `texts`: field_lines of each rank;
// `hosts`: of each rank.
std::string differing_fields(std::span<const std::string> texts,
                             std::span<const std::string> hosts);

}  // namespace quadrille
