// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/work_bound.h"

#include "io/checkpoint/exl3_module.h"
#include "io/checkpoint/module_names.h"
#include "kernels/error.h"
#include "kernels/exl3.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>

namespace quadrille {

namespace {

constexpr double kFloat = sizeof(float);

double as_double(int64_t value) {
    return static_cast<double>(value);
}

// The ops of the target on one rank, in the order they run.
class TargetOps {
  public:
    TargetOps(const ModelConfig& config, const StorageOf& storage, const ShardPlan& plan,
              const PassShape& pass)
        : c_(config), storage_(storage), plan_(plan), pass_(pass) {}

    std::vector<OpWork> all() {
        const Storage table = storage_of(storage_, "embed_tokens");
        add({.kind = WorkKind::embed,
             .weights = pass_.rows * as_double(c_.hidden_size * size_of(table.dtype))});
        for (int64_t l = 0; l < c_.num_layers; ++l) {
            const auto at = static_cast<size_t>(l);
            const std::string layer = fmt::format("layers.{}.", l);
            site(layer + "hc_attn_fn");
            if (c_.attention[at] == AttentionKind::kda) {
                kda(layer + "self_attn.");
            } else {
                mla(layer + "self_attn.");
                indexer(layer + "self_attn.indexer.");
            }
            site(layer + "hc_ffn_fn");
            if (c_.ffn[at] == FfnKind::dense) {
                mlp(WorkKind::dense, layer + "mlp.", plan_.dense.range.size());
            } else {
                moe(layer + "mlp.");
            }
        }
        if (pass_.logit_rows > 0) head();
        return std::move(ops_);
    }

  private:
    void add(const OpWork& op) { ops_.push_back(op); }
    void matrix(WorkKind kind, const std::string& module, int64_t n, int64_t k) {
        add(matrix_work(kind, storage_of(storage_, module), n, k, pass_.rows));
    }
    void vectors(WorkKind kind, int64_t values) {
        add({.kind = kind, .weights = kFloat * as_double(values)});
    }
    // `values` per row, each read once.
    void activations(WorkKind kind, int64_t values) {
        add({.kind = kind, .activations = kFloat * pass_.rows * as_double(values)});
    }
    void state(WorkKind kind, double values) { add({.kind = kind, .state = kFloat * values}); }

    // Streams are read on the way in and on the way out.
    void site(const std::string& fn) {
        const int64_t streams = c_.hc_mult;
        const int64_t gates = (2 + streams) * streams;
        matrix(WorkKind::hyper, fn, gates, streams * c_.hidden_size);
        vectors(WorkKind::hyper, gates + 3 + c_.hidden_size);
        activations(WorkKind::hyper, 2 * streams * c_.hidden_size + c_.hidden_size + gates);
    }

    void kda(const std::string& p) {
        const int64_t h = c_.hidden_size;
        const int64_t d = c_.linear_head_dim;
        const int64_t c = plan_.kda.range.size();
        const int64_t heads = plan_.kda_heads.size();
        constexpr WorkKind kind = WorkKind::kda;
        const std::vector<std::string> qkv = stored_modules(
            kQkvNames, p, [&](const std::string& module) { return storage_(module).has_value(); });
        for (const std::string& part : qkv) matrix(kind, part, 3 * c / std::ssize(qkv), h);
        for (const char* gate : {"f", "g"}) {
            matrix(kind, fmt::format("{}{}_a_proj", p, gate), d, h);
            matrix(kind, fmt::format("{}{}_b_proj", p, gate), c, d);
        }
        matrix(kind, p + "b_proj", heads, h);
        matrix(kind, p + "o_proj", h, c);
        vectors(kind, 3 * c * c_.linear_conv_kernel + heads + c + d);
        activations(kind, h + 2 * d + 6 * c + heads);
        const double waiting = pass_.pending * as_double(4 * c + heads);
        state(kind, as_double(std::ssize(pass_.contexts)) *
                        (as_double(c * d + (c_.linear_conv_kernel - 1) * 3 * c) + waiting));
    }

    // Tokens of a sequence in the caches when the last row of the pass attends.
    double length(int64_t context) const { return as_double(context) + pass_.rows_each(); }
    bool sparse(double tokens) const {
        return tokens > as_double(c_.index_topk + c_.index_kpool - 1);
    }

    void mla(const std::string& p) {
        const int64_t h = c_.hidden_size;
        const int64_t r = c_.kv_lora_rank;
        const int64_t heads = plan_.mla_heads.size();
        const int64_t key = c_.qk_nope_head_dim;
        const int64_t value = c_.v_head_dim;
        constexpr WorkKind kind = WorkKind::mla;
        matrix(kind, p + "q_a_proj", c_.q_lora_rank, h);
        matrix(kind, p + "q_b_proj", heads * key, c_.q_lora_rank);
        matrix(kind, p + "kv_a_proj_with_mqa", r, h);
        Storage kv_b = storage_of(storage_, p + "kv_b_proj");
        if (kv_b.is_exl3()) kv_b = {.dtype = Dtype::f32};  // attention wants it native
        add(matrix_work(kind, kv_b, heads * (key + value), r, pass_.rows));
        matrix(kind, p + "o_proj", h, heads * value);
        vectors(kind, c_.q_lora_rank + r);
        activations(kind, h + c_.q_lora_rank + r + heads * (key + value));
        double latents = 0;
        for (const int64_t context : pass_.contexts) {
            const double n = length(context);
            const double tail = std::fmod(std::floor(n), as_double(c_.index_kpool));
            latents += sparse(n) ? as_double(c_.index_topk) + tail : n;
        }
        state(kind, latents * as_double(r));
    }

    void indexer(const std::string& p) {
        const int64_t d = c_.index_head_dim;
        const int64_t heads = c_.index_heads;
        constexpr WorkKind kind = WorkKind::indexer;
        matrix(kind, p + "wq_b", heads * d, c_.q_lora_rank);
        matrix(kind, p + "wk", d, c_.hidden_size);
        matrix(kind, p + "weights_proj", heads, c_.hidden_size);
        matrix(kind, p + "index_kpool_compress_gate", d, c_.hidden_size);
        vectors(kind, (2 + c_.index_kpool) * d);
        activations(kind, 2 * d + heads * d + heads);
        double pools = 0;  // scored only where a choice is to be made
        for (const int64_t context : pass_.contexts) {
            const double n = length(context);
            if (sparse(n)) pools += std::floor(n / as_double(c_.index_kpool));
        }
        state(kind, pools * as_double(d));
    }

    void mlp(WorkKind kind, const std::string& p, int64_t width) {
        matrix(kind, p + "gate_proj", width, c_.hidden_size);
        matrix(kind, p + "up_proj", width, c_.hidden_size);
        matrix(kind, p + "down_proj", c_.hidden_size, width);
        activations(kind, c_.hidden_size + 2 * width);
    }

    void moe(const std::string& p) {
        matrix(WorkKind::router, p + "gate", c_.num_experts, c_.hidden_size);
        vectors(WorkKind::router, c_.num_experts);
        activations(WorkKind::router, c_.num_experts + 2 * c_.experts_per_token);
        const int64_t width = plan_.expert.range.size();
        const double share =
            distinct_experts(pass_.rows, c_.num_experts, c_.experts_per_token, pass_.overlap) /
            as_double(c_.num_experts);
        const std::array<const char*, 3> parts = {"gate_proj", "up_proj", "down_proj"};
        // Experts of one form are one op.
        std::map<Storage, std::array<int64_t, 3>> forms;
        for (int64_t e = 0; e < c_.num_experts; ++e) {
            for (size_t part = 0; part < parts.size(); ++part) {
                const std::string module = fmt::format("{}experts.{}.{}", p, e, parts[part]);
                ++forms[storage_of(storage_, module)][part];
            }
        }
        for (const auto& [form, counts] : forms) {
            for (size_t part = 0; part < parts.size(); ++part) {
                const bool down = part == 2;
                const auto count = as_double(counts[part]);
                const double rows = pass_.rows * as_double(c_.experts_per_token) * count /
                                    as_double(c_.num_experts);
                OpWork op = matrix_work(WorkKind::experts, form, down ? c_.hidden_size : width,
                                        down ? width : c_.hidden_size, rows);
                op.weights *= share * count;
                op.decoded *= share * count;
                add(op);
            }
        }
        activations(WorkKind::experts, c_.experts_per_token * 2 * width);
        mlp(WorkKind::shared, p + "shared_experts.", plan_.shared.range.size());
    }

    void head() {
        constexpr WorkKind kind = WorkKind::head;
        const double rows = kFloat * pass_.logit_rows;
        add(matrix_work(kind, storage_of(storage_, "lm_head"), plan_.vocab.size(), c_.hidden_size,
                        pass_.logit_rows));
        vectors(kind, c_.hidden_size);
        add({.kind = kind,
             .activations =
                 rows * as_double((c_.hc_mult + 1) * c_.hidden_size + plan_.vocab.size())});
    }

    const ModelConfig& c_;
    const StorageOf& storage_;
    const ShardPlan& plan_;
    const PassShape& pass_;
    std::vector<OpWork> ops_;
};

void add_to(WorkSum& sum, const OpWork& op) {
    sum.weights += op.weights;
    sum.state += op.state;
    sum.activations += op.activations;
    sum.decoded += op.decoded;
}

}  // namespace

StorageOf stored_in(const Checkpoint& checkpoint) {
    const std::string prefix = find_text_prefix(checkpoint).value_or("");
    auto forms = std::make_shared<std::unordered_map<std::string, Storage>>();
    for (const auto& [full, tensor] : checkpoint.tensors()) {
        const TensorName name = parse_tensor_name(full);
        const bool prefixed = name.module.starts_with(prefix);
        const std::string module = prefixed ? name.module.substr(prefix.size()) : name.module;
        if (name.part == TensorPart::trellis) {
            forms->insert_or_assign(
                module, Storage{.bits = trellis_bits(tensor),
                                .codebook = stored_codebook(checkpoint, name.module, name.rank),
                                .dtype = Dtype::f16});
        } else if (name.part == TensorPart::weight || name.part == TensorPart::bare) {
            forms->try_emplace(module, Storage{.dtype = tensor.dtype});
        }
    }
    return [forms](const std::string& module) -> std::optional<Storage> {
        const auto found = forms->find(module);
        if (found == forms->end()) return std::nullopt;
        return found->second;
    };
}

Storage storage_of(const StorageOf& storage, const std::string& module) {
    const std::optional<Storage> form = storage(module);
    if (!form) {
        throw Error(ErrorKind::input,
                    fmt::format("module {}: expected its weights, found none", module));
    }
    return *form;
}

double distinct_experts(double rows, int64_t experts, int64_t topk, double overlap) {
    require(topk >= 0 && topk <= experts && overlap >= 0 && overlap <= 1, "topk of the experts");
    const double common = overlap * as_double(topk);
    const double others = as_double(experts) - common;
    if (rows <= 0 || others <= 0) return rows <= 0 ? 0.0 : common;
    const double chosen = (as_double(topk) - common) / others;
    return common + others * (1.0 - std::pow(1.0 - chosen, rows));
}

const char* name(WorkKind kind) {
    constexpr std::array<const char*, 13> kNames = {
        "embedding",    "hyper-connections", "KDA",           "MLA",  "indexer",      "dense MLP",
        "router",       "experts",           "shared expert", "head", "draft layers", "draft head",
        "draft context"};
    return kNames.at(static_cast<size_t>(kind));
}

OpWork matrix_work(WorkKind kind, const Storage& storage, int64_t n, int64_t k, double rows) {
    OpWork op{.kind = kind, .multiplied = rows * as_double(n * k), .storage = storage};
    if (!storage.is_exl3()) {
        op.weights = as_double(n * k * size_of(storage.dtype));
        return op;
    }
    const int64_t outputs = exl3::padded(n);
    const int64_t inputs = exl3::padded(k);
    op.decoded = as_double(outputs * inputs);
    // The trellis, and an fp16 scale of every input and output.
    op.weights =
        as_double(exl3::trellis_bytes(outputs, inputs, storage.bits) + 2 * (outputs + inputs));
    return op;
}

std::vector<OpWork> target_work(const ModelConfig& config, const StorageOf& storage,
                                const ShardPlan& plan, const PassShape& pass) {
    require(!pass.contexts.empty(), "a pass of at least one sequence");
    return TargetOps(config, storage, plan, pass).all();
}

WorkSum sum_of(std::span<const OpWork> ops) {
    WorkSum sum;
    for (const OpWork& op : ops) add_to(sum, op);
    return sum;
}

std::map<WorkKind, WorkSum> sums_by_kind(std::span<const OpWork> ops) {
    std::map<WorkKind, WorkSum> sums;
    for (const OpWork& op : ops) add_to(sums[op.kind], op);
    return sums;
}

double floor_seconds(std::span<const OpWork> ops, const MachineRates& rates) {
    double seconds = 0;
    for (const auto& [kind, floor] : floors_by_kind(ops, rates)) seconds += floor;
    return seconds;
}

std::map<WorkKind, double> floors_by_kind(std::span<const OpWork> ops, const MachineRates& rates) {
    std::map<WorkKind, double> floors;
    for (const OpWork& op : ops) {
        const double reading = rates.read > 0 ? op.bytes() / rates.read : 0.0;
        const auto rate = rates.decode.find(op.storage);
        const bool known = op.decoded > 0 && rate != rates.decode.end() && rate->second > 0;
        const double multiplying = rates.multiply > 0 ? op.multiplied / rates.multiply : 0.0;
        floors[op.kind] +=
            std::max({reading, known ? op.decoded / rate->second : 0.0, multiplying});
    }
    return floors;
}

}  // namespace quadrille
