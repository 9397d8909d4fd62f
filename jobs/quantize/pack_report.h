// SPDX-License-Identifier: Apache-2.0
// What a finished pack is like: errors of its matrices and bytes, by class and one by one.
#pragma once

#include "jobs/quantize/bit_groups.h"
#include "jobs/quantize/pack_files.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace quadrille {

// A line a class: matrices, weights, bits, bytes, mean proxy and relative error, the worst matrix.
std::string report_table(const Checkpoint& pack, const std::vector<MatrixRecord>& records);
// The same with every matrix. `groups`: what --bpw measured, if it was asked for.
nlohmann::ordered_json report_json(const Checkpoint& pack, const std::vector<MatrixRecord>& records,
                                   const std::vector<BitGroup>& groups);

}  // namespace quadrille
