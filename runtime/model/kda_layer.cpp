// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/kda_layer.h"

#include "io/checkpoint/module_names.h"

#include <array>

namespace quadrille {

KdaScratch::KdaScratch(Backend& backend, const ModelConfig& config, const ShardPlan& plan,
                       int64_t max_rows)
    : qkv(backend, max_rows, 3 * plan.kda.range.size()),
      f(backend, max_rows, plan.kda.range.size()),
      g(backend, max_rows, plan.kda.range.size()),
      out(backend, max_rows, plan.kda.range.size()),
      f_low(backend, max_rows, config.linear_head_dim),
      g_low(backend, max_rows, config.linear_head_dim),
      beta(backend, max_rows, plan.kda_heads.size()) {}

KdaLayer::KdaLayer(Backend& backend, WeightLoader& loader, const std::string& prefix,
                   const ModelConfig& config, const ShardPlan& plan, int64_t slots,
                   int64_t max_pending)
    : backend_(backend) {
    const int64_t hidden = config.hidden_size;
    const int64_t heads = config.linear_heads;
    const int64_t dim = config.linear_head_dim;
    const int64_t channels = heads * dim;
    const int64_t taps = config.linear_conv_kernel;
    const Range share = plan.kda.range;
    const int64_t c = share.size();
    params_ = {.heads = static_cast<int32_t>(plan.kda_heads.size()),
               .head_dim = static_cast<int32_t>(dim),
               .taps = static_cast<int32_t>(taps),
               .lower_bound = static_cast<float>(config.linear_lower_bound),
               .norm_eps = static_cast<float>(config.rms_norm_eps)};

    // A fused tensor stacks q, k and v: a rank takes its range out of each third.
    std::vector<Range> thirds;
    for (int64_t part = 0; part < 3; ++part) {
        thirds.push_back({part * channels + share.begin, part * channels + share.end});
    }
    const auto has = [&](const std::string& module) { return loader.has_module(module); };
    const auto stored = stored_modules(kQkvNames, prefix, has);
    const int64_t fused = 3 / std::ssize(stored);  // parts in a stored matrix: 3 or 1
    for (size_t i = 0; i < stored.size(); ++i) {
        const auto rows = fused == 1 ? std::vector<Range>{share} : thirds;
        qkv_.emplace_back(
            static_cast<int64_t>(i) * c,
            loader.matrix(stored[i], fused * channels, hidden, MatrixSlice::of_rows(rows, hidden)));
    }
    std::vector<std::string> conv = stored_modules(kConvNames, prefix, has);
    for (std::string& module : conv) module = tensor_name(module, TensorPart::weight);
    weights_.conv = conv.size() == 1 ? loader.joined(conv, 3 * channels, taps, thirds)
                                     : loader.joined(conv, channels, taps, {share});
    f_a_ = loader.matrix(prefix + "f_a_proj", dim, hidden);
    f_b_ = loader.column_parallel(prefix + "f_b_proj", channels, dim, share);
    g_a_ = loader.matrix(prefix + "g_a_proj", dim, hidden);
    g_b_ = loader.column_parallel(prefix + "g_b_proj", channels, dim, share);
    beta_ = loader.column_parallel(prefix + "b_proj", heads, hidden, plan.kda_heads);
    weights_.a_log = loader.vector(prefix + "A_log", heads, {plan.kda_heads});
    weights_.dt_bias = loader.vector(prefix + "dt_bias", channels, {share});
    weights_.o_norm = loader.vector(prefix + "o_norm.weight", dim);
    out_ = loader.row_parallel(prefix + "o_proj", hidden, channels, plan.kda);

    state_ = Array<float>(backend, slots, c * dim, Memory::state);
    conv_ = Array<float>(backend, slots, (taps - 1) * 3 * c, Memory::state);
    pending_qkv_ = Array<float>(backend, slots, max_pending * 3 * c, Memory::state);
    pending_decay_ = Array<float>(backend, slots, max_pending * c, Memory::state);
    pending_beta_ = Array<float>(backend, slots, max_pending * params_.heads, Memory::state);
}

KdaState KdaLayer::state_view() const {
    return {.state = state_.view(),
            .conv = conv_.view(),
            .pending_qkv = pending_qkv_.view(),
            .pending_decay = pending_decay_.view(),
            .pending_beta = pending_beta_.view()};
}

void KdaLayer::forward(View<float> partial, View<const float> in, const Rows& rows,
                       KdaScratch& scratch) const {
    const int64_t m = in.rows;
    const View<float> qkv = scratch.qkv.first(m);
    std::array<Product, 6> products;
    size_t count = 0;
    for (const auto& [column, matrix] : qkv_) {
        products[count++] = {qkv.slice_cols(column, matrix.n), in, matrix};
    }
    products[count++] = {scratch.f_low.first(m), in, f_a_};
    products[count++] = {scratch.g_low.first(m), in, g_a_};
    products[count++] = {scratch.beta.first(m), in, beta_};
    backend_.linears({products.data(), count});
    const std::array<Product, 2> gates = {{{scratch.f.first(m), scratch.f_low.first(m), f_b_},
                                           {scratch.g.first(m), scratch.g_low.first(m), g_b_}}};
    backend_.linears(gates);
    backend_.kda({.out = scratch.out.first(m),
                  .qkv = qkv,
                  .f = scratch.f.first(m),
                  .b = scratch.beta.first(m),
                  .g = scratch.g.first(m)},
                 weights_, state_view(), params_, rows);
    backend_.linear(partial, scratch.out.first(m), out_);
}

void KdaLayer::flush(int32_t slot, int32_t pending, bool fresh) const {
    backend_.kda_flush(weights_, state_view(), params_, slot, pending, fresh);
}

std::vector<float> KdaLayer::download_state(int32_t slot) const {
    std::vector<float> values(static_cast<size_t>(state_.cols() + conv_.cols()));
    backend_.download(values.data(), state_.view().row(slot), state_.cols() * 4);
    backend_.download(values.data() + state_.cols(), conv_.view().row(slot), conv_.cols() * 4);
    return values;
}

}  // namespace quadrille
