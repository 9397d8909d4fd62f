// SPDX-License-Identifier: Apache-2.0
// What a checkpoint consists of, from its headers alone: tensor classes with their weights, bytes
// and bits a weight, and the shapes that occur. Text for `inspect`.
#pragma once

#include "io/checkpoint/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace quadrille {

// Class of a tensor by its name: "routed experts", "attention", … Layers from `num_layers` on are
// "MTP"; num_layers < 0: not known.
std::string tensor_class(const std::string& name, int64_t num_layers);

struct ClassSummary {
    int64_t tensors = 0;
    int64_t weights = 0;  // logical ones: K·N of a trellis; scales and markers count none
    int64_t bytes = 0;
    std::set<std::string> forms;  // "BF16", "EXL3 4 bits mul1"…

    double bits() const;  // 8 · bytes / weights, NaN without weights
};

// One kind of module: the same name up to layer and expert numbers, the same form and shape.
struct ModuleSummary {
    int64_t count = 0;
    int64_t bytes = 0;
};

struct CheckpointSummary {
    std::map<std::string, ClassSummary> classes;
    std::map<std::string, int64_t> suffixes;  // tensors
    // (name with * for numbers, form, shape) of modules
    std::map<std::vector<std::string>, ModuleSummary> modules;
    ClassSummary total;
};

CheckpointSummary summarize(const Checkpoint& checkpoint, int64_t num_layers);

// The whole report of `inspect` on a checkpoint folder. Error{input} as Checkpoint's.
std::string describe_checkpoint(const std::filesystem::path& folder);

}  // namespace quadrille
