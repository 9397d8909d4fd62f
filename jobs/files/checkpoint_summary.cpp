// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/checkpoint_summary.h"

#include "io/checkpoint/exl3_module.h"
#include "io/checkpoint/model_config.h"
#include "io/checkpoint/module_names.h"
#include "io/text/json.h"
#include "io/text/tokenizer.h"
#include "jobs/common/table.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

namespace quadrille {
namespace {

constexpr int64_t kMaxConfig = int64_t{16} << 20;  // bytes

bool is_number(const std::string& part) {
    return !part.empty() && std::all_of(part.begin(), part.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::string> parts_of(const std::string& name) {
    std::vector<std::string> parts(1);
    for (const char c : name) {
        if (c == '.')
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

std::string without_numbers(const std::string& name) {
    std::vector<std::string> parts = parts_of(name);
    for (std::string& part : parts)
        if (is_number(part)) part = "*";
    return fmt::format("{}", fmt::join(parts, "."));
}

// Trellis (K/16, N/16, 16·bits) int16 of a (N, K) matrix.
int64_t weights_of(const Tensor& tensor, TensorPart part) {
    if (!holds_weights(part)) return 0;
    if (part != TensorPart::trellis) return tensor.elements();
    const int64_t bits = trellis_bits(tensor);
    return bits == 0 ? 0 : tensor.elements() / bits * exl3::kTile;
}

std::string form_of(const Checkpoint& checkpoint, const Tensor& tensor, const TensorName& name) {
    if (name.part != TensorPart::trellis) return quadrille::name(tensor.dtype);
    return fmt::format("EXL3 {} bits {}", trellis_bits(tensor),
                       quadrille::name(stored_codebook(checkpoint, name.module, name.rank)));
}

std::string shape_of(const Tensor& tensor, TensorPart part) {
    std::vector<int64_t> shape = tensor.shape;
    if (part == TensorPart::trellis && shape.size() == 3)
        shape = {shape[1] * exl3::kTile, shape[0] * exl3::kTile};
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// ".trellis"; ".rank*.trellis" of a matrix that is split for its ranks.
std::string suffix_text(const TensorName& name) {
    if (name.part == TensorPart::bare) return "(none)";
    return fmt::format("{}.{}", name.rank < 0 ? "" : ".rank*", suffix(name.part));
}

std::string bits_text(const ClassSummary& summary) {
    return std::isnan(summary.bits()) ? "" : fmt::format("{:.2f}", summary.bits());
}

void add(ClassSummary& summary, const Tensor& tensor, int64_t weights, const std::string& form) {
    ++summary.tensors;
    summary.weights += weights;
    summary.bytes += std::ssize(tensor.bytes);
    if (weights > 0) summary.forms.insert(form);
}

std::string describe_model(const ModelConfig& c) {
    const auto kda = std::count(c.attention.begin(), c.attention.end(), AttentionKind::kda);
    const auto dense = std::count(c.ffn.begin(), c.ffn.end(), FfnKind::dense);
    Table table("ll");
    table.row({"model", "target"})
        .row({"layers",
              fmt::format("{} ({} KDA, {} MLA; {} dense, {} MoE), {} MTP", c.num_layers, kda,
                          c.num_layers - kda, dense, c.num_layers - dense, c.num_mtp_layers)})
        .row({"hidden", fmt::format("{} ({} streams)", c.hidden_size, c.hc_mult)})
        .row({"experts",
              fmt::format("{}, {} a token, {} shared, {} channels", c.num_experts,
                          c.experts_per_token, c.num_shared_experts, c.moe_intermediate_size)})
        .row({"heads", fmt::format("{} KDA of {}, {} MLA of {}", c.linear_heads, c.linear_head_dim,
                                   c.num_heads, c.qk_nope_head_dim)})
        .row({"vocabulary", fmt::format("{}", c.vocab_size)})
        .row({"end tokens", fmt::format("{}", fmt::join(c.eos_token_ids, ", "))})
        .row({"longest context", fmt::format("{}", c.max_position_embeddings)});
    return table.text();
}

std::string describe_draft(const DraftConfig& c) {
    Table table("ll");
    table.row({"model", c.selector_rank > 0 ? "DFlash2 drafter" : "DFlash drafter"})
        .row({"layers",
              fmt::format("{}, hidden {}, {} heads", c.num_layers, c.hidden_size, c.num_heads)})
        .row({"block", fmt::format("{} tokens, mask token {}", c.block_size, c.mask_token_id)})
        .row({"taps", fmt::format("{} of {} target layers", fmt::join(c.target_layer_ids, ", "),
                                  c.num_target_layers)})
        .row({"vocabulary", fmt::format("{}", c.vocab_size)});
    return table.text();
}

// The config's account of the model; a folder without a usable config is still described.
std::string describe_config(const std::filesystem::path& folder, int64_t& num_layers) {
    try {
        const ModelConfig config = read_model_config(folder);
        num_layers = config.num_layers;
        return describe_model(config);
    } catch (const Error& target_error) {
        try {
            return describe_draft(read_draft_config(folder));
        } catch (const Error&) {
            return fmt::format("  no usable config: {}\n", target_error.what());
        }
    }
}

std::string class_table(const CheckpointSummary& summary) {
    Table table("lrrrrl");
    table.row({"class", "tensors", "weights", "bytes", "bits", "stored as"});
    const auto line = [&](const std::string& name, const ClassSummary& c, std::string forms) {
        table.row({name, fmt::format("{}", c.tensors), fmt::format("{}", c.weights),
                   format_bytes(c.bytes), bits_text(c), std::move(forms)});
    };
    for (const auto& [name, c] : summary.classes)
        line(name, c, fmt::format("{}", fmt::join(c.forms, ", ")));
    line("total", summary.total, "");
    return table.text();
}

std::string module_table(const CheckpointSummary& summary) {
    Table table("lllrr");
    table.row({"module", "stored as", "shape", "count", "bytes"});
    for (const auto& [key, module] : summary.modules)
        table.row(
            {key[0], key[1], key[2], fmt::format("{}", module.count), format_bytes(module.bytes)});
    return table.text();
}

}  // namespace

std::string tensor_class(const std::string& name, int64_t num_layers) {
    const std::vector<std::string> parts = parts_of(name);
    const auto has = [&](const char* part) {
        return std::find(parts.begin(), parts.end(), part) != parts.end();
    };
    const auto contains = [&](const char* text) { return name.find(text) != std::string::npos; };
    if (is_vision(name)) return "vision";
    if (num_layers >= 0 && layer_of(name) >= num_layers) return "MTP";
    if (has("embed_tokens")) return "embedding";
    if (has("lm_head")) return "head";
    if (has("indexer")) return "indexer";
    if (contains("candidate_selector")) return "selector";
    if (contains("_conv.")) return "draft convolutions";
    if (contains("norm")) return "norms";
    if (has("self_attn")) return "attention";
    if (has("experts")) return "routed experts";
    if (has("shared_experts")) return "shared experts";
    if (has("gate") && has("mlp")) return "router";
    if (has("mlp")) return "dense MLP";
    if (contains("hc_")) return "hyper-connections";
    return parts[0] == "fc" ? "taps" : "other";
}

double ClassSummary::bits() const {
    if (weights == 0) return std::numeric_limits<double>::quiet_NaN();
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
}

CheckpointSummary summarize(const Checkpoint& checkpoint, int64_t num_layers) {
    CheckpointSummary summary;
    for (const auto& [full, tensor] : checkpoint.tensors()) {
        const TensorName name = parse_tensor_name(full);
        const int64_t weights = weights_of(tensor, name.part);
        const std::string form = form_of(checkpoint, tensor, name);
        add(summary.classes[tensor_class(full, num_layers)], tensor, weights, form);
        add(summary.total, tensor, weights, form);
        ++summary.suffixes[suffix_text(name)];
        if (!holds_weights(name.part)) continue;
        const bool itself = name.part == TensorPart::trellis || name.part == TensorPart::bare;
        const std::string title =
            without_numbers(name.module) + (itself ? "" : std::string(".") + suffix(name.part));
        ModuleSummary& module = summary.modules[{title, form, shape_of(tensor, name.part)}];
        ++module.count;
        module.bytes += std::ssize(tensor.bytes);
    }
    return summary;
}

// Files beside the weights that are there and cannot be used by any job.
void check_side_files(const std::filesystem::path& folder) {
    const std::filesystem::path config = folder / "config.json";
    std::error_code ignored;
    if (std::filesystem::exists(config, ignored)) read_json(config, kMaxConfig);
    if (has_tokenizer(folder.string()) && text_supported()) make_tokenizer(folder.string());
}

std::string describe_checkpoint(const std::filesystem::path& folder) {
    const Checkpoint checkpoint(folder);
    check_side_files(folder);
    int64_t num_layers = -1;
    const std::string config = describe_config(folder, num_layers);
    const CheckpointSummary summary = summarize(checkpoint, num_layers);
    std::vector<std::string> suffix_counts;
    for (const auto& [suffix, count] : summary.suffixes)
        suffix_counts.push_back(fmt::format("{} {}", suffix, count));
    std::string out =
        fmt::format("{}: checkpoint, {} file{}, {} tensors, {}\n", folder.string(),
                    checkpoint.files().size(), checkpoint.files().size() == 1 ? "" : "s",
                    checkpoint.tensors().size(), format_bytes(summary.total.bytes));
    out += config;
    Table facts("ll");
    facts.row({"digest", checkpoint.digest()})
        .row({"tokenizer", has_tokenizer(folder) ? "tokenizer.json" : "none"})
        .row({"suffixes", fmt::format("{}", fmt::join(suffix_counts, ", "))});
    out += facts.text();
    return out + '\n' + class_table(summary) + '\n' + module_table(summary);
}

}  // namespace quadrille
