// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/pack_plan.h"

#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"
#include "kernels/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

namespace quadrille {
namespace {

// What a matrix is, by the end of its module's name; `group` of those with the same inputs.
struct Known {
    const char* name;
    WeightClass kind;
    const char* group;
};
constexpr Known kAttention[] = {{"qkv_proj", WeightClass::attention, "in"},
                                {"q_proj", WeightClass::attention, "in"},
                                {"k_proj", WeightClass::attention, "in"},
                                {"v_proj", WeightClass::attention, "in"},
                                {"q_a_proj", WeightClass::attention, "in"},
                                {"kv_a_proj_with_mqa", WeightClass::attention, "in"},
                                {"q_b_proj", WeightClass::attention, "low"},
                                {"indexer.wq_b", WeightClass::attention, "low"},
                                {"o_proj", WeightClass::attention, "out"}};
constexpr const char* kGated[] = {"gate_proj", "up_proj", "down_proj"};

struct Placed {
    WeightClass kind;
    std::string task;
    int64_t expert = -1;
};

bool is_gated(std::string_view name) {
    return std::ranges::find(kGated, name) != std::end(kGated);
}

// `tail`: the module behind "layers.L."; nullopt: it is not quantized.
std::optional<Placed> place_in_layer(std::string_view tail) {
    constexpr std::string_view kSelf = "self_attn.";
    constexpr std::string_view kMlp = "mlp.";
    constexpr std::string_view kShared = "shared_experts.";
    constexpr std::string_view kExperts = "experts.";
    if (tail.starts_with(kSelf)) {
        tail.remove_prefix(kSelf.size());
        for (const Known& known : kAttention) {
            if (tail == known.name) return Placed{known.kind, fmt::format("attn-{}", known.group)};
        }
        return std::nullopt;
    }
    if (!tail.starts_with(kMlp)) return std::nullopt;
    tail.remove_prefix(kMlp.size());
    if (is_gated(tail)) {
        return Placed{WeightClass::mlp, tail == "down_proj" ? "mlp-mid" : "mlp-in"};
    }
    if (tail.starts_with(kShared) && is_gated(tail.substr(kShared.size()))) {
        return Placed{WeightClass::shared, "shared"};
    }
    if (!tail.starts_with(kExperts)) return std::nullopt;
    tail.remove_prefix(kExperts.size());
    const size_t dot = tail.find('.');
    if (dot == std::string_view::npos || !is_gated(tail.substr(dot + 1))) return std::nullopt;
    const std::string number(tail.substr(0, dot));
    return Placed{WeightClass::routed, "expert-" + number, std::stoll(number)};
}

UnitKind unit_of(const std::string& name, const std::string& prefix, int64_t layer,
                 int64_t layers) {
    const std::string module = parse_tensor_name(name).module;
    if (is_vision(name)) return UnitKind::other;
    if (module == "lm_head" || module == prefix + "norm") return UnitKind::head;
    if (module == prefix + "embed_tokens") return UnitKind::embedding;
    if (layer < 0 || !name.starts_with(prefix + "layers.")) return UnitKind::other;
    if (layer >= layers) return UnitKind::mtp;
    const std::string tail = name.substr(fmt::format("{}layers.{}.", prefix, layer).size());
    const bool ffn = tail.starts_with("mlp.") || tail.starts_with("hc_ffn") ||
                     tail.starts_with("post_attention_layernorm");
    return ffn ? UnitKind::ffn : UnitKind::attention;
}

// Order in which units are made: the order of the forward pass.
std::tuple<int, int64_t, int> order_of(UnitKind kind, int64_t layer) {
    switch (kind) {
        case UnitKind::embedding:
            return {0, 0, 0};
        case UnitKind::attention:
            return {1, layer, 0};
        case UnitKind::ffn:
            return {1, layer, 1};
        case UnitKind::head:
            return {2, 0, 0};
        case UnitKind::mtp:
            return {3, layer, 0};
        case UnitKind::other:
            break;
    }
    return {4, 0, 0};
}

void add_matrix(PlannedUnit& unit, const Tensor& tensor, const std::string& prefix,
                const QuantizeJobOptions& options) {
    const TensorName name = parse_tensor_name(tensor.name);
    if (name.part != TensorPart::weight || tensor.shape.size() != 2) return;
    std::optional<Placed> placed;
    if (name.module == "lm_head") {
        placed = Placed{WeightClass::head, "head"};
    } else if (unit.layer >= 0) {
        placed =
            place_in_layer(std::string_view(name.module)
                               .substr(fmt::format("{}layers.{}.", prefix, unit.layer).size()));
    }
    if (!placed) return;
    const int64_t bits = options.bits(placed->kind, unit.layer);
    if (bits == 0) return;
    const std::string task_name =
        unit.layer < 0 ? placed->task : fmt::format("layer-{}-{}", unit.layer, placed->task);
    auto task = std::ranges::find(unit.tasks, task_name, &PlannedTask::name);
    if (task == unit.tasks.end()) {
        unit.tasks.push_back({.name = task_name,
                              .kind = placed->kind,
                              .expert = placed->expert,
                              .bits = bits,
                              .matrices = {}});
        task = unit.tasks.end() - 1;
    }
    task->matrices.push_back({.module = name.module, .n = tensor.shape[0], .k = tensor.shape[1]});
}

// A matrix whose inputs are shared out among ranks is computed in kSegments parts of whole blocks
// (docs/design.md §6): the last block may be short only where each part has one.
bool can_be_loaded(const PlannedMatrix& matrix) {
    const std::string_view name = matrix.module;
    const bool shared_out = name.ends_with("down_proj") || name.ends_with("o_proj");
    return !shared_out || matrix.k % exl3::kBlock == 0 ||
           exl3::padded(matrix.k) / exl3::kBlock >= kSegments;
}

void keep_what_cannot_be_loaded(PackPlan& plan) {
    for (PlannedUnit& unit : plan.units) {
        std::erase_if(unit.tasks, [&](const PlannedTask& task) {
            if (std::ranges::all_of(task.matrices, can_be_loaded)) return false;
            for (const PlannedMatrix& matrix : task.matrices) plan.kept.push_back(matrix.module);
            return true;
        });
    }
}

void check_layer_bits(const PackPlan& plan, const QuantizeJobOptions& options) {
    std::set<int64_t> sparse;
    for (const PlannedUnit& unit : plan.units) {
        for (const PlannedTask& task : unit.tasks) {
            if (task.kind == WeightClass::routed) sparse.insert(unit.layer);
        }
    }
    for (const auto& [layer, bits] : options.layer_bits) {
        if (!sparse.contains(layer)) {
            throw Error(ErrorKind::usage, fmt::format("--layer-bits: layer {} of {} has no routed "
                                                      "experts",
                                                      layer, options.target));
        }
    }
}

}  // namespace

int64_t PlannedTask::weights() const {
    int64_t sum = 0;
    for (const PlannedMatrix& matrix : matrices) sum += matrix.n * matrix.k;
    return sum;
}

int64_t PlannedUnit::weights() const {
    int64_t sum = 0;
    for (const PlannedTask& task : tasks) sum += task.weights();
    return sum;
}

int64_t PackPlan::weights() const {
    int64_t sum = 0;
    for (const PlannedUnit& unit : units) sum += unit.weights();
    return sum;
}

int64_t PackPlan::bytes() const {
    int64_t sum = 0;
    for (const PlannedUnit& unit : units) {
        std::set<std::string> packed;
        for (const PlannedTask& task : unit.tasks) {
            for (const PlannedMatrix& matrix : task.matrices) {
                const int64_t n = exl3::padded(matrix.n);
                const int64_t k = exl3::padded(matrix.k);
                sum += exl3::trellis_bytes(n, k, static_cast<int>(task.bits)) + 2 * (n + k) + 4;
                packed.insert(matrix.module);
            }
        }
        for (const Tensor* tensor : unit.tensors) {
            const TensorName name = parse_tensor_name(tensor->name);
            if (packed.contains(name.module) || name.part == TensorPart::weight_scale_inv) continue;
            const bool fp8 = tensor->dtype == Dtype::f8_e4m3;  // becomes bf16
            sum += std::ssize(tensor->bytes) * (fp8 ? 2 : 1);
        }
    }
    return sum;
}

PackPlan plan_pack(const Checkpoint& source, const ModelConfig& config,
                   const QuantizeJobOptions& options) {
    PackPlan plan;
    plan.prefix = text_prefix(source);
    std::map<std::tuple<int, int64_t, int>, PlannedUnit> units;
    for (const auto& [name, tensor] : source.tensors()) {
        if (parse_tensor_name(name).part == TensorPart::trellis) {
            throw Error(ErrorKind::input,
                        fmt::format("{}: tensor {}: expected a checkpoint that is not quantized to "
                                    "EXL3, found a trellis",
                                    source.folder().string(), name));
        }
        const int64_t layer = layer_of(name);
        const UnitKind kind = unit_of(name, plan.prefix, layer, config.num_layers);
        const bool in_layer =
            kind == UnitKind::attention || kind == UnitKind::ffn || kind == UnitKind::mtp;
        PlannedUnit& unit = units[order_of(kind, layer)];
        unit.kind = kind;
        unit.layer = in_layer ? layer : -1;
        unit.tensors.push_back(&tensor);
        add_matrix(unit, tensor, plan.prefix, options);
    }
    for (auto& [order, unit] : units) {
        unit.file =
            fmt::format("model-{:05d}-of-{:05d}.safetensors", plan.units.size() + 1, units.size());
        plan.units.push_back(std::move(unit));
    }
    check_layer_bits(plan, options);
    keep_what_cannot_be_loaded(plan);
    return plan;
}

}  // namespace quadrille
