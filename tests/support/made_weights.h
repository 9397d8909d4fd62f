// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose weights are made from the tensors' names, byte for byte as
// tools/reference/make_wide_goldens.py makes them, so that large models need not be stored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quadrille::test {

// The first `count` bytes of a name's stream: byte i is byte i % 8 (lowest first) of the i / 8-th
// output of splitmix64 seeded with the FNV-1a hash of the name.
std::vector<int8_t> name_stream(const std::string& name, int64_t count);

// Writes FOLDER/config.json and FOLDER/model.safetensors. `tensors`: a JSON list of objects with
// name, dtype, shape, and the rule of its values: offset, drop, exponent (offset + (byte >> drop) /
// 2^exponent), or sign, exponent (+-(1 + (byte & 7) / 16) / 2^exponent, the byte's sign), or value
// (one integer), or nothing (the bytes themselves).
void write_made_checkpoint(const std::filesystem::path& folder, const std::string& config,
                           const std::string& tensors);

}  // namespace quadrille::test
