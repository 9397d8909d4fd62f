// SPDX-License-Identifier: Apache-2.0
// What quantize is asked for, and its flags.
#pragma once

#include "io/results/run_lock.h"
#include "jobs/options/job.h"
#include "jobs/options/model_options.h"
#include "jobs/prompts/prompt_source_options.h"
#include "kernels/matrix.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace quadrille {

// Matrices that get the same bits. Others are stored as they are.
enum class WeightClass : uint8_t { routed, attention, shared, mlp, head };
inline constexpr WeightClass kWeightClasses[] = {WeightClass::routed, WeightClass::attention,
                                                 WeightClass::shared, WeightClass::mlp,
                                                 WeightClass::head};
const char* name(WeightClass kind);

struct QuantizeJobOptions : ModelOptions, PromptSourceOptions {  // prompts: calibration rows
    std::string out;
    int64_t routed_bits = 0;
    std::map<int64_t, int64_t> layer_bits;  // of routed experts, by layer
    int64_t dense_bits = 0;       // of the three below where they are not given; 0: native
    int64_t attention_bits = -1;  // -1: not given
    int64_t shared_bits = -1;
    int64_t mlp_bits = -1;
    int64_t head_bits = 16;  // 16: native
    double bpw = 0;          // mean over all that is quantized; 0: bits are as given
    // By layer (-1: the head), what --bpw came to; before all others.
    std::map<std::pair<int64_t, WeightClass>, int64_t> chosen_bits;
    Codebook codebook = Codebook::mcg;
    uint64_t seed = 0;
    int64_t threads = 0;                  // of a rank; 0: its share of the host's
    std::string report;                   // JSON file; "": none
    Locking locking = Locking::required;  // as HDF5_USE_FILE_LOCKING says

    // 0: native.
    int64_t bits(WeightClass kind, int64_t layer) const;
    bool full() const;  // more than routed experts is quantized
};

void add_flags(CLI::App& app, QuantizeJobOptions& options);
void finish(QuantizeJobOptions& options, const Invocation& invocation);

}  // namespace quadrille
