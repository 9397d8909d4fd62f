// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/hyper_site.h"

namespace quadrille {

HyperParams hyper_params(const ModelConfig& config) {
    return {.streams = static_cast<int32_t>(config.hc_mult),
            .sinkhorn_iterations = static_cast<int32_t>(config.hc_sinkhorn_iters),
            .sinkhorn_eps = static_cast<float>(config.hc_eps),
            .norm_eps = static_cast<float>(config.rms_norm_eps)};
}

HyperSite load_site(WeightLoader& loader, const ModelConfig& config, const std::string& prefix,
                    SiteKind kind) {
    const bool attention = kind == SiteKind::attention;
    const int64_t streams = config.hc_mult;
    const int64_t gates = (2 + streams) * streams;
    const std::string base = prefix + (attention ? "hc_attn" : "hc_ffn");
    const std::string norm = attention ? "input_layernorm" : "post_attention_layernorm";
    return {.fn = loader.matrix(base + "_fn", gates, streams * config.hidden_size),
            .base = loader.vector(base + "_base", gates),
            .scale = loader.vector(base + "_scale", 3),
            .norm = loader.vector(prefix + norm + ".weight", config.hidden_size)};
}

HyperPass::HyperPass(Backend& backend, const ModelConfig& config, int64_t max_rows)
    : backend_(backend),
      params_(hyper_params(config)),
      pre_(backend, max_rows, config.hc_mult),
      post_(backend, max_rows, config.hc_mult),
      mix_(backend, max_rows, config.hc_mult * config.hc_mult),
      in_(backend, max_rows, config.hidden_size) {}

View<float> HyperPass::enter(const HyperSite& site, View<const float> streams) {
    const int64_t m = streams.rows;
    const View<float> in = in_.first(m);
    backend_.hyper_weights(pre_.first(m), post_.first(m), mix_.first(m), streams, site.fn,
                           site.base, site.scale, params_);
    backend_.hyper_in(in, streams, pre_.first(m));
    backend_.rms_norm(in, in, site.norm, params_.norm_eps);
    return in;
}

void HyperPass::leave(View<float> streams, View<const float> y) {
    const int64_t m = streams.rows;
    backend_.hyper_out(streams, y, post_.first(m), mix_.first(m));
}

}  // namespace quadrille
