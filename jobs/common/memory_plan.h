// SPDX-License-Identifier: Apache-2.0
// The memory of a run on one rank, by class, known before its weights are read: the run is built on
// a backend that only counts (PaperBackend), so what is planned is what will be taken. Beside it
// stand what ops, graphs and NCCL take by themselves. Reads headers only.
#pragma once

#include "drafter/make_drafter.h"
#include "io/checkpoint/model_config.h"
#include "io/checkpoint/safetensors.h"
#include "kernels/device.h"
#include "runtime/model/target_model.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace quadrille {

// How a model is going to run on one rank.
struct RunPlan {
    std::string backend = "cpu";  // "cpu" or "cuda"
    int ranks = 1;                // that share the model
    int rank = 0;
    ModelLimits limits{};
    bool eager = false;  // no CUDA graphs were asked for
    bool nccl = false;
    bool filtered = false;        // draws with top-p, top-k, min-p or log-probabilities
    bool unified = false;         // the device's memory is the host's
    std::vector<int64_t> taps{};  // without a drafter

    // Decode steps are CUDA graphs.
    bool recorded() const { return backend == "cuda" && !eager && (ranks == 1 || nccl); }
};

struct MemoryPlan {
    ModelLimits limits{};
    std::map<Memory, int64_t> held{};  // bytes
    int64_t scratch = 0;               // of ops
    int64_t graphs = 0;
    int64_t nccl = 0;
    int64_t host = 0;     // page-locked; where it is the device's memory too
    int64_t loading = 0;  // the same while weights are read

    int64_t known() const;
    int64_t spare() const;  // what is not known one by one: 2 % of what is
    int64_t total() const;
    // Title and bytes of each class that there is.
    std::vector<std::pair<std::string, int64_t>> classes() const;
};

// `drafter` may be nullptr. Error{input} and Error{usage} as of a load.
MemoryPlan plan_memory(const ModelConfig& config, const Checkpoint& checkpoint,
                       const DrafterFiles* drafter, const RunPlan& run);

// The most slots from 1 to `most` whose plan fits `available` bytes; 0: not even one. `plan` is
// asked a few times.
int64_t fitting_slots(int64_t most, int64_t available,
                      const std::function<MemoryPlan(int64_t slots)>& plan);

// The plan as a table; `available` < 0: not known.
std::string plan_table(const MemoryPlan& plan, int64_t available);
// What to change so that a plan fits. `plan`: of other slots and tokens per slot.
std::string plan_advice(const MemoryPlan& current, int64_t available,
                        const std::function<MemoryPlan(int64_t slots, int64_t capacity)>& plan);

}  // namespace quadrille
