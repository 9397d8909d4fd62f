// SPDX-License-Identifier: Apache-2.0
#include "jobs/common/memory_plan.h"

#include "io/checkpoint/module_names.h"
#include "jobs/common/table.h"
#include "kernels/paper_backend.h"
#include "kernels/scratch_bound.h"
#include "runtime/engine.h"
#include "runtime/model/weight_reader.h"
#include "runtime/model/work_bound.h"
#include "runtime/prefill_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace quadrille {

namespace {

// Allowances, not measured one by one: a layer in a graph, NCCL's buffers and kernels for 2 or 4
// ranks, and a share of everything for kernels' code and what an allocator rounds up.
constexpr int64_t kGraphBytes = int64_t{96} << 10;
constexpr int64_t kNcclBytes = int64_t{512} << 20;
constexpr int64_t kSpareShare = 50;

// Sizes of decode steps that are recorded.
int64_t buckets(int32_t slots) {
    int64_t count = 0;
    for (int32_t n = 1; n <= slots; ++n) count += n == slots || step_bucket(n, slots) == n;
    return count;
}

bool has_native_experts(const ModelConfig& config, const Checkpoint& checkpoint) {
    const std::string prefix = text_prefix(checkpoint);
    for (int64_t l = 0; l < config.num_layers; ++l) {
        if (config.ffn[static_cast<size_t>(l)] == FfnKind::dense) continue;
        const StoredAs form =
            stored_as(checkpoint, fmt::format("{}layers.{}.mlp.experts.0.down_proj", prefix, l));
        return form != StoredAs::exl3 && form != StoredAs::exl3_split;
    }
    return false;
}

ScratchShape scratch_shape(const ModelConfig& config, const ShardPlan& shard,
                           const DrafterFiles* drafter, const RunPlan& run) {
    const ModelLimits& limits = run.limits;
    ScratchShape shape{.rows = limits.max_rows,
                       .decode_rows = int64_t{limits.slots} * limits.longest_block(),
                       .hidden = config.hidden_size,
                       .vocab = shard.vocab.size()};
    shape.segments = shard.expert.segments;
    shape.widest = std::max({config.hidden_size, config.q_lora_rank, shard.kda.range.size(),
                             shard.mla.range.size(), shard.dense.range.size()});
    shape.experts = config.num_experts;
    shape.topk = config.experts_per_token;
    shape.expert_width = shard.expert.range.size();
    shape.shared_width = shard.shared.range.size();
    shape.mla_heads = shard.mla_heads.size();
    shape.latent_dim = config.kv_lora_rank;
    shape.selected = config.index_topk + config.index_kpool - 1;
    const int64_t pools = limits.capacity / config.index_kpool;
    shape.pools = limits.capacity > shape.selected ? pools : 0;
    shape.filtered = run.filtered;
    if (drafter != nullptr) {
        const DraftConfig& draft = drafter->config;
        shape.widest = std::max(shape.widest, std::ssize(drafter->taps()) * draft.hidden_size);
        shape.draft_rows = limits.slots * draft.block_size;
        shape.draft_width =
            (drafter->plan.heads.size() + drafter->plan.kv_heads.size()) * draft.head_dim;
    }
    return shape;
}

const char* title(Memory memory) {
    switch (memory) {
        case Memory::weights:
            return "weights";
        case Memory::latents:
            return "latents and pools";
        case Memory::state:
            return "KDA state";
        case Memory::draft_context:
            return "drafter's context";
        case Memory::pass:
            return "pass buffers";
    }
    return "";
}

bool fits(const MemoryPlan& plan, int64_t available) {
    return available < 0 || plan.total() <= available;
}

}  // namespace

int64_t MemoryPlan::known() const {
    int64_t sum = std::max(scratch, loading) + graphs + nccl + host;
    for (const auto& [memory, bytes] : held) sum += bytes;
    return sum;
}

int64_t MemoryPlan::spare() const {
    return known() / kSpareShare;
}

int64_t MemoryPlan::total() const {
    return known() + spare();
}

std::vector<std::pair<std::string, int64_t>> MemoryPlan::classes() const {
    std::vector<std::pair<std::string, int64_t>> rows;
    for (const auto& [memory, bytes] : held) rows.emplace_back(title(memory), bytes);
    rows.emplace_back("workspace of ops", scratch);
    rows.emplace_back("reading of weights, before", std::max<int64_t>(loading - scratch, 0));
    rows.emplace_back("CUDA graphs", graphs);
    rows.emplace_back("NCCL", nccl);
    rows.emplace_back("page-locked", host);
    rows.emplace_back("spare", spare());
    std::erase_if(rows, [](const auto& row) { return row.second == 0; });
    return rows;
}

MemoryPlan plan_memory(const ModelConfig& config, const Checkpoint& checkpoint,
                       const DrafterFiles* drafter, const RunPlan& run) {
    PaperBackend backend(run.backend);
    Position position;
    const std::unique_ptr<Communicator> comm =
        make_paper_comm(run.ranks, run.rank, run.ranks == 1 || run.nccl);
    TargetModel target(backend, *comm, position, config, checkpoint, run.limits,
                       drafter != nullptr ? drafter->taps() : run.taps);
    std::unique_ptr<Drafter> draft;
    if (drafter != nullptr) {
        draft = make_drafter(backend, *comm, position, *drafter, target, config.vocab_size);
    }
    const int32_t k = run.limits.max_block - 1;
    const Engine engine(backend, *comm, position, target, draft.get(),
                        {.max_batched_tokens = static_cast<int32_t>(
                             prefill_floor(std::max(run.limits.max_rows, kPrefillGrid))),
                         .k = k,
                         .known_tokens = config.vocab_size,
                         .steps = run.recorded() ? StepWay::recorded : StepWay::in_parts});
    MemoryPlan plan{.limits = run.limits, .held = backend.held()};
    ScratchShape shape = scratch_shape(config, target.plan(), drafter, run);
    shape.native_experts = has_native_experts(config, checkpoint);
    plan.scratch = scratch_bound(run.backend, shape);
    if (run.recorded()) {
        plan.graphs = buckets(run.limits.slots) * config.num_layers * kGraphBytes;
    }
    if (run.nccl) plan.nccl = kNcclBytes;
    if (run.unified || run.backend != "cuda") {
        plan.host = backend.host_bytes();
        plan.loading = WeightReader::most_host_bytes();
    }
    return plan;
}

int64_t fitting_slots(int64_t most, int64_t available,
                      const std::function<MemoryPlan(int64_t slots)>& plan) {
    const MemoryPlan all = plan(most);
    if (fits(all, available)) return most;
    if (most == 1) return 0;
    const MemoryPlan one = plan(1);
    if (!fits(one, available)) return 0;
    int64_t low = 1;
    int64_t high = most;
    auto need_low = static_cast<double>(one.total());
    auto need_high = static_cast<double>(all.total());
    // Need grows nearly in a line; the rest is halving.
    for (bool line = true; high - low > 1; line = !line) {
        const double share = (static_cast<double>(available) - need_low) / (need_high - need_low);
        const auto guess = line
                               ? low + static_cast<int64_t>(share * static_cast<double>(high - low))
                               : low + (high - low) / 2;
        const int64_t slots = std::clamp(guess, low + 1, high - 1);
        const MemoryPlan middle = plan(slots);
        const bool good = fits(middle, available);
        (good ? low : high) = slots;
        (good ? need_low : need_high) = static_cast<double>(middle.total());
    }
    return low;
}

std::string plan_table(const MemoryPlan& plan, int64_t available) {
    Table table("lr");
    for (const auto& [name, bytes] : plan.classes()) table.row({name, format_bytes(bytes)});
    table.row({"together", format_bytes(plan.total())});
    table.row({"available", available < 0 ? "not known" : format_bytes(available)});
    return table.text();
}

std::string plan_advice(const MemoryPlan& current, int64_t available,
                        const std::function<MemoryPlan(int64_t slots, int64_t capacity)>& plan) {
    const int64_t capacity = current.limits.capacity;
    const int64_t slots = fitting_slots(current.limits.slots, available,
                                        [&](int64_t count) { return plan(count, capacity); });
    if (slots > 0) return fmt::format("--max-seqs {} fits", slots);
    const auto weights = current.held.find(Memory::weights);
    constexpr int64_t kStep = 64;  // tokens
    const int64_t steps = fitting_slots(std::max<int64_t>(capacity / kStep, 1), available,
                                        [&](int64_t count) { return plan(1, count * kStep); });
    if (steps > 0) return fmt::format("--max-seqs 1 --max-context {} fits", steps * kStep);
    return fmt::format(
        "the weights alone take {}: more ranks, fewer --max-batched-tokens or a "
        "smaller pack",
        format_bytes(weights == current.held.end() ? 0 : weights->second));
}

}  // namespace quadrille
