// SPDX-License-Identifier: Apache-2.0
// The floor of a pass (docs/design.md §10): what one rank must at least read from memory and decode
// for it, op by op. Pure functions of config, storage forms, shard plan and pass; nothing is
// measured here. Every byte is counted once: weights as the program keeps them (norms and
// convolutions in fp32), states and caches, and each activation between two ops. Writes and
// collectives are not counted.
#pragma once

#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/dtype.h"
#include "kernels/matrix.h"
#include "runtime/model/shard.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quadrille {

// How a matrix is stored: EXL3 where bits > 0, else native.
struct Storage {
    int32_t bits = 0;
    Codebook codebook = Codebook::three_inst;
    Dtype dtype = Dtype::bf16;

    bool is_exl3() const { return bits > 0; }
    friend auto operator<=>(const Storage&, const Storage&) = default;
};

// Form of a module by its name without prefix ("layers.3.mlp.gate_proj", "lm_head"); nullopt: there
// is none.
using StorageOf = std::function<std::optional<Storage>(const std::string& module)>;
// From a checkpoint's headers.
StorageOf stored_in(const Checkpoint& checkpoint);
// The form of a module that must be there. Error{input} naming it.
Storage storage_of(const StorageOf& storage, const std::string& module);

// Expected number of different experts that `rows` rows choose, topk of `experts` each. A share
// `overlap` of a row's choices are the same for all rows, the others uniform and independent.
double distinct_experts(double rows, int64_t experts, int64_t topk, double overlap = 0.0);

enum class WorkKind : uint8_t {
    embed,
    hyper,  // mHC and the norms behind it
    kda,
    mla,
    indexer,
    dense,
    router,
    experts,
    shared,
    head,
    draft,          // the drafter's layers
    draft_head,     // the target's head once more, and the selector
    draft_context,  // features, keys and values of committed rows
};
const char* name(WorkKind kind);

// One op, or the activations of one sublayer.
struct OpWork {
    WorkKind kind = WorkKind::embed;
    double weights = 0;      // bytes
    double state = 0;        // bytes: recurrent states, caches
    double activations = 0;  // bytes
    double decoded = 0;      // EXL3 weights, of `storage`
    double multiplied = 0;   // multiply-adds with matrices
    Storage storage{};

    double bytes() const { return weights + state + activations; }
};

// One matrix of n outputs and k inputs as a rank holds it, for `rows` rows.
OpWork matrix_work(WorkKind kind, const Storage& storage, int64_t n, int64_t k, double rows);

struct PassShape {
    double rows = 1;                  // tokens
    double logit_rows = 1;            // rows that go through the head
    std::vector<int64_t> contexts{};  // tokens in the caches before the pass, by sequence
    double pending = 0;               // decode: accepted rows of the last step, of each sequence
    double overlap = 0;               // as distinct_experts

    double rows_each() const { return rows / static_cast<double>(contexts.size()); }
};

// The target's forward. `storage` names modules without prefix. Error{input}: a missing module.
std::vector<OpWork> target_work(const ModelConfig& config, const StorageOf& storage,
                                const ShardPlan& plan, const PassShape& pass);

// Sums over ops; `kind`: of one kind only.
struct WorkSum {
    double weights = 0;
    double state = 0;
    double activations = 0;
    double decoded = 0;
    double bytes() const { return weights + state + activations; }
};
WorkSum sum_of(std::span<const OpWork> ops);
std::map<WorkKind, WorkSum> sums_by_kind(std::span<const OpWork> ops);

// What a rank's machine was measured to do. A rate of 0 is not known and bounds nothing.
struct MachineRates {
    double read = 0;                     // bytes/s
    std::map<Storage, double> decode{};  // EXL3 weights/s, by bits and codebook
    double multiply = 0;                 // multiply-adds/s
};
// Sum over the ops of the largest of bytes / read, decoded / decode and multiplied / multiply. 0:
// nothing is known.
double floor_seconds(std::span<const OpWork> ops, const MachineRates& rates);
std::map<WorkKind, double> floors_by_kind(std::span<const OpWork> ops, const MachineRates& rates);

}  // namespace quadrille
