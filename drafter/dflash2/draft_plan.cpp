// SPDX-License-Identifier: Apache-2.0
#include "drafter/dflash2/draft_plan.h"

#include "io/checkpoint/exl3_module.h"
#include "io/checkpoint/module_names.h"
#include "kernels/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace quadrille {

namespace {

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ErrorKind::input, "this drafter does not fit the target: " + what);
}

void check_equal(const char* field, int64_t target, int64_t found) {
    if (found != target) {
        refuse(fmt::format("{}: expected {} as in the target, found {}", field, target, found));
    }
}

void add_conv(std::vector<DraftModule>& modules, const std::string& prefix, const DraftConfig& c) {
    if (c.conv_kernel_size == 0) return;
    const int64_t groups = c.hidden_size / c.conv_group_size;
    modules.push_back({prefix + "base_kernel", {2, c.conv_kernel_size, c.hidden_size}, false});
    modules.push_back(
        {prefix + "kernel_projection", {2 * c.conv_kernel_size * groups, c.hidden_size}});
}

// The channels of `range` are whole units of `unit`.
bool whole(const Range& range, int64_t unit) {
    return range.size() > 0 && range.begin % unit == 0 && range.end % unit == 0;
}

[[noreturn]] void refuse_split(const std::string& dimension, int ranks) {
    throw Error(ErrorKind::usage,
                fmt::format("this drafter cannot be split over {} ranks ({}); place it replicated",
                            ranks, dimension));
}

}  // namespace

std::vector<DraftModule> draft_modules(const DraftConfig& c) {
    const int64_t hidden = c.hidden_size;
    const int64_t width = c.num_heads * c.head_dim;
    const int64_t kv_width = c.num_kv_heads * c.head_dim;
    std::vector<DraftModule> modules = {
        {"fc", {hidden, std::ssize(c.target_layer_ids) * hidden}},
        {"hidden_norm.weight", {hidden}, false},
        {"norm.weight", {hidden}, false},
    };
    for (int64_t l = 0; l < c.num_layers; ++l) {
        const std::string layer = fmt::format("layers.{}.", l);
        const std::string attention = layer + "self_attn.";
        modules.insert(modules.end(), {{layer + "input_layernorm.weight", {hidden}, false},
                                       {layer + "post_attention_layernorm.weight", {hidden}, false},
                                       {attention + "q_proj", {width, hidden}},
                                       {attention + "k_proj", {kv_width, hidden}},
                                       {attention + "v_proj", {kv_width, hidden}},
                                       {attention + "o_proj", {hidden, width}},
                                       {attention + "q_norm.weight", {c.head_dim}, false},
                                       {attention + "k_norm.weight", {c.head_dim}, false},
                                       {layer + "mlp.gate_proj", {c.intermediate_size, hidden}},
                                       {layer + "mlp.up_proj", {c.intermediate_size, hidden}},
                                       {layer + "mlp.down_proj", {hidden, c.intermediate_size}}});
        add_conv(modules, layer + "attention_conv.", c);
        add_conv(modules, layer + "mlp_conv.", c);
    }
    if (c.selector_rank > 0) {
        const std::string selector = "candidate_selector.";
        modules.push_back(
            {selector + "predecessor_codebook", {c.vocab_size, c.selector_rank}, false});
        modules.push_back(
            {selector + "successor_codebook", {c.vocab_size, c.selector_rank}, false});
        modules.push_back({selector + "hidden_projection", {c.selector_rank, hidden}});
    }
    return modules;
}

void check_draft_config(const DraftConfig& draft, const ModelConfig& target, int64_t k) {
    check_equal("hidden_size", target.hidden_size, draft.hidden_size);
    check_equal("vocab_size", target.vocab_size, draft.vocab_size);
    check_equal("num_target_layers", target.num_layers, draft.num_target_layers);
    const std::vector<int64_t>& taps = draft.target_layer_ids;
    if (taps.empty() || taps.front() < 0 || taps.back() >= target.num_layers ||
        std::adjacent_find(taps.begin(), taps.end(), std::greater_equal<>()) != taps.end()) {
        refuse(fmt::format("target_layer_ids: expected ascending layers below {}, found [{}]",
                           target.num_layers, fmt::join(taps, ", ")));
    }
    if (draft.mask_token_id < 0 || draft.mask_token_id >= target.vocab_size) {
        refuse(fmt::format("mask_token_id: expected a row of the embedding of {} tokens, found {}",
                           target.vocab_size, draft.mask_token_id));
    }
    if (draft.block_size < 2) {
        refuse(fmt::format("block_size: expected at least 2, found {}", draft.block_size));
    }
    if (k < 0 || k >= draft.block_size) {
        throw Error(ErrorKind::usage,
                    fmt::format("{} drafts per step: expected 0 to {}, the drafter's block has {} "
                                "rows and one is the anchor",
                                k, draft.block_size - 1, draft.block_size));
    }
}

void check_draft_tensors(const DraftConfig& draft, const Checkpoint& checkpoint) {
    const std::vector<DraftModule> modules = draft_modules(draft);
    for (const auto& [name, tensor] : checkpoint.tensors()) {
        const TensorName parsed = parse_tensor_name(name);
        const auto owns = [&name = name, &parsed](const DraftModule& module) {
            return module.matrix ? parsed.module == module.name && parsed.part != TensorPart::bare
                                 : name == module.name;
        };
        if (std::none_of(modules.begin(), modules.end(), owns)) {
            throw Error(
                ErrorKind::input,
                fmt::format("{}: tensor {}: expected no such tensor in a drafter of this config",
                            checkpoint.folder().string(), name));
        }
    }
    for (const DraftModule& module : modules) {
        const StoredAs form = stored_as(checkpoint, module.name);
        if (module.matrix && (form == StoredAs::exl3 || form == StoredAs::exl3_split)) {
            find_exl3_module(checkpoint, module.name, module.shape[0], module.shape[1]);
            continue;
        }
        const TensorPart part = module.matrix ? TensorPart::weight : TensorPart::bare;
        const std::string expected = fmt::format("[{}]", fmt::join(module.shape, ", "));
        const Tensor& tensor = checkpoint.get(tensor_name(module.name, part), expected);
        if (tensor.shape != module.shape) checkpoint.refuse(tensor, expected);
    }
}

DraftPlan plan_draft(const DraftConfig& draft, DraftPlacement placement, int ranks, int rank) {
    const bool split = placement == DraftPlacement::sharded && ranks > 1;
    const int parts = split ? ranks : 1;
    const int part = split ? rank : 0;
    const int64_t width = draft.num_heads * draft.head_dim;
    DraftPlan plan;
    plan.partial = split;
    plan.attention = segment_share(width, parts, part);
    plan.mlp = segment_share(draft.intermediate_size, parts, part);
    if (!whole(plan.attention.range, draft.head_dim)) {
        refuse_split(fmt::format("num_attention_heads: {} heads of {} channels in blocks of {}",
                                 draft.num_heads, draft.head_dim, kShardBlock),
                     ranks);
    }
    if (plan.mlp.range.size() <= 0) {
        refuse_split(fmt::format("intermediate_size: {} channels in blocks of {}",
                                 draft.intermediate_size, kShardBlock),
                     ranks);
    }
    plan.heads = {plan.attention.range.begin / draft.head_dim,
                  plan.attention.range.end / draft.head_dim};
    // Every kv head serves `group` heads; a rank needs whole groups, or lies inside one.
    const int64_t group = draft.num_heads / draft.num_kv_heads;
    plan.kv_heads = {plan.heads.begin / group, (plan.heads.end + group - 1) / group};
    if (!whole(plan.heads, group) && plan.kv_heads.size() != 1) {
        refuse_split(fmt::format("num_key_value_heads: {} for {} heads, of which a rank holds {}",
                                 draft.num_kv_heads, draft.num_heads, plan.heads.size()),
                     ranks);
    }
    return plan;
}

}  // namespace quadrille
