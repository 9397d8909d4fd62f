// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/ffn_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace quadrille {

FfnScratch::FfnScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
                       int64_t max_rows)
    : gate(backend, max_rows, std::max(plan.dense.range.size(), plan.shared.range.size())),
      up(backend, max_rows, std::max(plan.dense.range.size(), plan.shared.range.size())),
      router(backend, max_rows, config.num_experts),
      ids(backend, max_rows, config.experts_per_token),
      weights(backend, max_rows, config.experts_per_token) {}

Mlp load_mlp(WeightLoader& loader, const std::string& prefix, int64_t hidden, int64_t width,
             const SegmentedRange& share) {
    return {.gate = loader.column_parallel(prefix + "gate_proj", width, hidden, share.range),
            .up = loader.column_parallel(prefix + "up_proj", width, hidden, share.range),
            .down = loader.row_parallel(prefix + "down_proj", hidden, width, share)};
}

FfnLayer::FfnLayer(Backend& backend, WeightLoader& loader, const std::string& prefix, FfnKind kind,
                   const ModelConfig& config, const ShardPlan& plan)
    : backend_(backend), kind_(kind), limit_(static_cast<float>(config.swiglu_limit)) {
    const int64_t hidden = config.hidden_size;
    if (kind == FfnKind::dense) {
        dense_ = load_mlp(loader, prefix, hidden, config.intermediate_size, plan.dense);
        return;
    }
    router_ = loader.matrix(prefix + "gate", config.num_experts, hidden);
    router_bias_ = loader.vector(prefix + "gate.e_score_correction_bias", config.num_experts);
    routed_scale_ = static_cast<float>(config.routed_scaling_factor);
    for (int64_t e = 0; e < config.num_experts; ++e) {
        experts_.push_back(load_mlp(loader, fmt::format("{}experts.{}.", prefix, e), hidden,
                                    config.moe_intermediate_size, plan.expert));
        const Mlp& expert = experts_.back();
        moe_.max_width = std::max({moe_.max_width, expert.gate.n, expert.gate.n_padded});
    }
    moe_.shared = load_mlp(loader, prefix + "shared_experts.", hidden,
                           config.moe_intermediate_size * config.num_shared_experts, plan.shared);
    moe_.max_width = std::max({moe_.max_width, moe_.shared.gate.n, moe_.shared.gate.n_padded});
    moe_.experts = loader.table(experts_);
    moe_.host_experts = experts_.data();
    moe_.count = static_cast<int32_t>(config.num_experts);
    moe_.limit = limit_;
}

void FfnLayer::forward(View<float> partial, View<const float> in, const Rows& rows,
                       FfnScratch& scratch) const {
    const int64_t m = in.rows;
    if (kind_ == FfnKind::dense) {
        const View<float> gate = scratch.gate.first(m).slice_cols(0, dense_.gate.n);
        const View<float> up = scratch.up.first(m).slice_cols(0, dense_.gate.n);
        const std::array<Product, 2> hidden = {{{gate, in, dense_.gate}, {up, in, dense_.up}}};
        backend_.linears(hidden);
        backend_.swiglu(gate, gate, up, limit_);
        backend_.linear(partial, gate, dense_.down);
        return;
    }
    // The shared expert's first products ride along with the router's, which alone takes longer
    // than its weights.
    const int64_t width = moe_.shared.gate.n;
    const View<float> gate = scratch.gate.first(m).slice_cols(0, width);
    const View<float> up = scratch.up.first(m).slice_cols(0, width);
    const std::array<Product, 3> first = {{{scratch.router.first(m), in, router_},
                                           {gate, in, moe_.shared.gate},
                                           {up, in, moe_.shared.up}}};
    backend_.linears(std::span(first).first(width > 0 ? 3 : 1));
    backend_.route(scratch.ids.first(m), scratch.weights.first(m), scratch.router.first(m),
                   router_bias_, routed_scale_, rows);
    backend_.moe(partial, in, scratch.ids.first(m), scratch.weights.first(m), moe_, gate, up);
}

}  // namespace quadrille
