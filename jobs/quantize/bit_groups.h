// SPDX-License-Identifier: Apache-2.0
// Which bits each class of a layer's matrices gets, when the mean over all of them is given
// (--bpw): from what quantizing each class alone does to the model's output.
#pragma once

#include "jobs/quantize/quantize_options.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille {

// Matrices that get the same bits.
struct BitGroup {
    int64_t layer = -1;  // -1: the head
    WeightClass kind = WeightClass::routed;
    int64_t weights = 0;
    int64_t measured_bits = 0;
    double divergence = 0;  // KL(source || source with this group alone at the measured bits)
    int64_t bits = 0;       // what it gets
};

// Sets the bits, 1 to 8, of every group: no more than `bpw` on the mean over weights. A group's
// divergence is taken to follow the quantizer's error at its bits, and those of several groups to
// add up; each bit goes where it lowers the sum most for the weights that get it.
void allocate_bits(std::vector<BitGroup>& groups, double bpw);
// The divergence that a group has at other bits than the measured ones.
double expected_divergence(const BitGroup& group, int64_t bits);

std::string group_table(const std::vector<BitGroup>& groups);
nlohmann::json as_json(const std::vector<BitGroup>& groups);
// Error{input} with `place` for what as_json does not make.
std::vector<BitGroup> as_groups(const nlohmann::json& value, const std::string& place);

}  // namespace quadrille
