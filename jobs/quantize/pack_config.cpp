// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_config.h"

#include "io/text/json.h"
#include "jobs/common/version.h"

#include <fmt/format.h>

namespace quadrille {
namespace {

constexpr int64_t kMaxConfig = 1 << 24;
constexpr const char* kKey = "quantization_config";
// The version of exllamav3 whose format the tensors have.
constexpr const char* kFormatVersion = "1.4.1";

}  // namespace

nlohmann::ordered_json pack_config(const Checkpoint& source, const PackPlan& plan,
                                   const QuantizeJobOptions& options,
                                   const CalibrationSize& calibration) {
    const std::filesystem::path file = source.folder() / "config.json";
    nlohmann::ordered_json config = parse_ordered_json(read_file(file, kMaxConfig), file.string());
    nlohmann::ordered_json made = {{"quant_method", "exl3"},
                                   {"version", kFormatVersion},
                                   {"bits", options.routed_bits},
                                   {"head_bits", options.head_bits},
                                   {"codebook", name(options.codebook)}};
    if (options.bpw > 0) made["bits"] = options.bpw;
    if (calibration.rows > 0) {
        made["calibration"] = {{"rows", calibration.rows}, {"cols", calibration.cols}};
    }
    made["scope"] = options.full() ? "full" : "glm53_routed_experts_only";
    if (!options.full()) made["non_routed_dtype_policy"] = "official_source_native";
    for (const PlannedUnit& unit : plan.units) {
        for (const PlannedTask& task : unit.tasks) {
            if (task.kind == WeightClass::routed && task.bits != options.routed_bits) {
                made["layer_bits"][std::to_string(unit.layer)] = task.bits;
            }
        }
    }
    made["quantized_by"] = fmt::format("quadrille {}", version());
    if (config.contains(kKey)) made["original_quantization_config"] = config[kKey];
    config[kKey] = made;
    return config;
}

}  // namespace quadrille
