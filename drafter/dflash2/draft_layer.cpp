// SPDX-License-Identifier: Apache-2.0
#include "drafter/dflash2/draft_layer.h"

#include "kernels/error.h"
#include "runtime/model/ffn_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace quadrille {

namespace {

// Context positions a layer must remember. Rows of a block reach back a window from their own
// positions; a few places more keep what the last blocks saw readable.
int32_t ring_size(const DraftConfig& config, bool sliding, int64_t capacity) {
    if (!sliding) return static_cast<int32_t>(capacity);
    return static_cast<int32_t>(std::min(capacity, config.sliding_window + config.block_size));
}

// No activation of its own: gate is limited by nothing.
constexpr float kNoLimit = 0.0f;

}  // namespace

DraftScratch::DraftScratch(Backend& backend, const DraftConfig& config, const DraftPlan& plan,
                           const DraftRows& rows)
    : in(backend, rows.block, config.hidden_size),
      mixed(backend, rows.block, config.hidden_size),
      query(backend, rows.block, plan.attention.range.size()),
      out(backend, rows.block, plan.attention.range.size()),
      key(backend, std::max(rows.block, rows.context), plan.kv_heads.size() * config.head_dim),
      value(backend, std::max(rows.block, rows.context), plan.kv_heads.size() * config.head_dim),
      gate(backend, rows.block, plan.mlp.range.size()),
      up(backend, rows.block, plan.mlp.range.size()),
      sum(backend, rows.block, config.hidden_size) {
    if (config.conv_kernel_size == 0) return;
    const int64_t groups = config.hidden_size / config.conv_group_size;
    dynamic = Array<float>(backend, rows.block, 2 * config.conv_kernel_size * groups);
}

DraftLayer::DraftLayer(Backend& backend, WeightLoader& loader, const DraftConfig& config,
                       int64_t index, const DraftPlan& plan, const DraftRows& rows)
    : backend_(backend),
      conv_taps_(static_cast<int32_t>(config.conv_kernel_size)),
      conv_group_(static_cast<int32_t>(config.conv_group_size)) {
    const bool sliding = config.sliding.at(static_cast<size_t>(index));
    const int64_t hidden = config.hidden_size;
    const int64_t d = config.head_dim;
    params_ = {.heads = static_cast<int32_t>(plan.heads.size()),
               .kv_heads = static_cast<int32_t>(plan.kv_heads.size()),
               .head_dim = static_cast<int32_t>(d),
               .block = static_cast<int32_t>(config.block_size),
               .window = sliding ? static_cast<int32_t>(config.sliding_window) : 0,
               .rope_theta = static_cast<float>(config.rope_theta),
               .norm_eps = static_cast<float>(config.rms_norm_eps),
               .causal = config.is_causal};

    const std::string layer = fmt::format("layers.{}.", index);
    const std::string attention = layer + "self_attn.";
    const Range kv = {plan.kv_heads.begin * d, plan.kv_heads.end * d};
    input_norm_ = loader.vector(layer + "input_layernorm.weight", hidden);
    post_norm_ = loader.vector(layer + "post_attention_layernorm.weight", hidden);
    query_ = loader.column_parallel(attention + "q_proj", config.num_heads * d, hidden,
                                    plan.attention.range);
    key_ = loader.column_parallel(attention + "k_proj", config.num_kv_heads * d, hidden, kv);
    value_ = loader.column_parallel(attention + "v_proj", config.num_kv_heads * d, hidden, kv);
    out_ = loader.row_parallel(attention + "o_proj", hidden, config.num_heads * d, plan.attention);
    q_norm_ = loader.vector(attention + "q_norm.weight", d);
    k_norm_ = loader.vector(attention + "k_norm.weight", d);
    mlp_ = load_mlp(loader, layer + "mlp.", hidden, config.intermediate_size, plan.mlp);
    attention_conv_ = load_conv(loader, layer + "attention_conv.", config);
    mlp_conv_ = load_conv(loader, layer + "mlp_conv.", config);

    ring_size_ = ring_size(config, sliding, rows.capacity);
    const int64_t width = ring_size_ * kv.size();
    keys_ = Array<float>(backend, rows.slots, width, Memory::draft_context);
    values_ = Array<float>(backend, rows.slots, width, Memory::draft_context);
}

DraftLayer::Conv DraftLayer::load_conv(WeightLoader& loader, const std::string& prefix,
                                       const DraftConfig& config) {
    if (config.conv_kernel_size == 0) return {};
    const int64_t hidden = config.hidden_size;
    const int64_t groups = hidden / config.conv_group_size;
    return {.kernel = loader.matrix(prefix + "kernel_projection",
                                    2 * config.conv_kernel_size * groups, hidden),
            .base = loader.tensor(prefix + "base_kernel", {2, config.conv_kernel_size, hidden})};
}

DraftCache DraftLayer::cache() const {
    return {.keys = keys_.view(), .values = values_.view(), .ring_size = ring_size_};
}

void DraftLayer::append(View<const float> features, const uint8_t* write, const Rows& rows,
                        DraftScratch& scratch) const {
    const View<float> key = scratch.key.first(rows.m);
    const View<float> value = scratch.value.first(rows.m);
    const std::array<Product, 2> products = {{{key, features, key_}, {value, features, value_}}};
    backend_.linears(products);
    backend_.draft_append(cache(), key, value, k_norm_, write, params_, rows);
}

View<const float> DraftLayer::enter(View<const float> hidden, const float* norm, const Conv& conv,
                                    DraftScratch& scratch) const {
    const int64_t m = hidden.rows;
    const View<float> in = scratch.in.first(m);
    backend_.rms_norm(in, hidden, norm, params_.norm_eps);
    if (conv.base == nullptr) return in;
    // The coefficients of both convolutions come from here, before any of them.
    const View<float> dynamic = scratch.dynamic.first(m);
    backend_.linear(dynamic, in, conv.kernel);
    const View<float> mixed = scratch.mixed.first(m);
    backend_.draft_conv(mixed, in, dynamic.slice_cols(0, dynamic.cols / 2), conv.base, conv_taps_,
                        conv_group_, params_.block);
    return mixed;
}

void DraftLayer::leave(View<float> hidden, const Conv& conv, DraftScratch& scratch,
                       TreeReduce* reduce) const {
    const int64_t m = hidden.rows;
    const View<float> sum = scratch.sum.first(m);
    if (reduce != nullptr) reduce->sum(sum, sum);
    if (conv.base == nullptr) {
        backend_.add(hidden, sum);
        return;
    }
    const View<float> dynamic = scratch.dynamic.first(m);
    const int64_t half = dynamic.cols / 2;
    const View<float> mixed = scratch.mixed.first(m);
    backend_.draft_conv(mixed, sum, dynamic.slice_cols(half, half),
                        conv.base + conv_taps_ * hidden.cols, conv_taps_, conv_group_,
                        params_.block);
    backend_.add(hidden, mixed);
}

void DraftLayer::forward(View<float> hidden, const Rows& rows, DraftScratch& scratch,
                         TreeReduce* reduce) const {
    const int64_t m = hidden.rows;
    const View<float> query = scratch.query.first(m);
    const View<float> key = scratch.key.first(m);
    const View<float> value = scratch.value.first(m);
    const View<const float> attended = enter(hidden, input_norm_, attention_conv_, scratch);
    const std::array<Product, 3> heads = {
        {{query, attended, query_}, {key, attended, key_}, {value, attended, value_}}};
    backend_.linears(heads);
    const View<float> out = scratch.out.first(m);
    backend_.draft_attention(out, {query, key, value, q_norm_, k_norm_}, cache(), params_, rows);
    backend_.linear(scratch.sum.first(m), out, out_);
    leave(hidden, attention_conv_, scratch, reduce);

    const View<float> gate = scratch.gate.first(m);
    const View<float> up = scratch.up.first(m);
    const View<const float> gated = enter(hidden, post_norm_, mlp_conv_, scratch);
    const std::array<Product, 2> inner = {{{gate, gated, mlp_.gate}, {up, gated, mlp_.up}}};
    backend_.linears(inner);
    backend_.swiglu(gate, gate, up, kNoLimit);
    backend_.linear(scratch.sum.first(m), gate, mlp_.down);
    leave(hidden, mlp_conv_, scratch, reduce);
}

std::vector<float> DraftLayer::download_context(int32_t slot, int64_t first, int64_t last) const {
    const int64_t width = int64_t{params_.kv_heads} * params_.head_dim;
    require(last - first <= ring_size_, "positions that the ring still holds");
    std::vector<float> values;
    for (const Array<float>* ring : {&keys_, &values_}) {
        for (int64_t position = first; position < last; ++position) {
            const auto at = std::ssize(values);
            values.resize(values.size() + static_cast<size_t>(width));
            backend_.download(values.data() + at,
                              ring->view().row(slot) + position % ring_size_ * width, width * 4);
        }
    }
    return values;
}

}  // namespace quadrille
