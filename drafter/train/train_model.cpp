// SPDX-License-Identifier: Apache-2.0
#include "drafter/train/train_model.h"

#include <fmt/format.h>

namespace quadrille {

template <class T>
struct TrainModel<T>::Step {
    const Parameters& parameters;
    TrainOps<T>& ops;
    const T* weights;
    T* gradient;
    int64_t trained;
    const TrainPass<T>& pass;
    int64_t rows;     // of blocks
    int64_t context;  // rows

    View<const T> weight(const std::string& name) const {
        const Parameter& p = parameters.get(name);
        return {weights + p.offset, p.rows(), p.cols()};
    }
    const T* vector(const std::string& name) const { return weight(name).data; }
    bool trains(const std::string& name) const {
        return gradient != nullptr && parameters.get(name).offset < trained;
    }
    // nullptr: frozen.
    T* gradient_of(const std::string& name) const {
        return trains(name) ? gradient + parameters.get(name).offset : nullptr;
    }
    // y = x W^T.
    void linear(View<T> y, View<const T> x, const std::string& name) const {
        ops.product(y, x, weight(name), ProductForm::nt, false);
    }
    // dx = or += dy W; dW += dy^T x.
    void linear_back(View<T> dx, View<const T> dy, View<const T> x, const std::string& name,
                     bool add) const {
        ops.product(dx, dy, weight(name), ProductForm::nn, add);
        weight_back(dy, x, name);
    }
    void weight_back(View<const T> dy, View<const T> x, const std::string& name) const {
        if (!trains(name)) return;
        const Parameter& p = parameters.get(name);
        ops.product(View<T>(gradient + p.offset, p.rows(), p.cols()), dy, x, ProductForm::tn, true);
    }
};

namespace {

std::string of_layer(size_t layer, const char* name) {
    return fmt::format("layers.{}.{}", layer, name);
}

}  // namespace

template <class T>
TrainModel<T>::TrainModel(Backend& backend, TrainOps<T>& ops, const DraftConfig& config,
                          const Parameters& parameters, View<const T> embedding,
                          const TrainLimits& limits)
    : backend_(backend),
      ops_(ops),
      config_(config),
      parameters_(parameters),
      embedding_(embedding),
      limits_(limits),
      eps_(static_cast<T>(config.rms_norm_eps)) {
    make_room();
}

template <class T>
void TrainModel<T>::make_room() {
    const DraftConfig& c = config_;
    const int64_t rows = limits_.blocks * c.block_size;
    const int64_t h = c.hidden_size;
    const int64_t width = c.num_heads * c.head_dim;
    const int64_t kv = c.num_kv_heads * c.head_dim;
    const int64_t mlp = c.intermediate_size;
    const int64_t dynamic = 2 * c.conv_kernel_size * (h / c.conv_group_size);
    const int64_t context = limits_.context;
    const auto sublayer = [&] {
        return Sublayer{room(rows, h), room(rows, h), room(rows, dynamic), room(rows, h),
                        room(rows, h)};
    };
    context_raw_ = room(context, h);
    context_ = room(context, h);
    last_ = room(rows, h);
    hidden_ = room(rows, h);
    for (int64_t l = 0; l < c.num_layers; ++l) {
        tapes_.push_back({sublayer(), sublayer(), room(rows, width), room(rows, kv),
                          room(rows, width), room(rows, kv), room(rows, kv), room(rows, width),
                          room(context, kv), room(context, kv), room(context, kv), room(rows, mlp),
                          room(rows, mlp), room(rows, mlp)});
    }
    back_ = {room(rows, h),       room(rows, h),     room(rows, h),     room(rows, h),
             room(rows, dynamic), room(rows, width), room(rows, width), room(rows, kv),
             room(rows, kv),      room(rows, kv),    room(rows, width), room(context, kv),
             room(context, kv),   room(context, kv), room(context, h),  room(context, h),
             room(rows, mlp),     room(rows, mlp),   room(rows, mlp)};
}

template <class T>
ConvShape TrainModel<T>::conv_shape(int64_t side) const {
    return {config_.conv_kernel_size, config_.conv_group_size, config_.block_size, side};
}

template <class T>
AttentionShape TrainModel<T>::attention_shape(size_t layer) const {
    return {config_.num_heads, config_.num_kv_heads, config_.head_dim,
            config_.sliding[layer] ? config_.sliding_window : 0, config_.is_causal};
}

template <class T>
AttentionInputs<T> TrainModel<T>::attention_inputs(const Tape& tape, const Step& s) const {
    return {tape.q.first(s.rows), tape.k.first(s.rows), tape.v.first(s.rows),
            tape.context_k.first(s.context), tape.context_v.first(s.context)};
}

template <class T>
void TrainModel<T>::enter(Sublayer& sub, const Step& s, const std::string& norm,
                          const std::string& conv) {
    const View<T> normed = sub.normed.first(s.rows);
    ops_.rms_norm(normed, sub.in.first(s.rows), s.vector(norm), eps_);
    s.linear(sub.dynamic.first(s.rows), normed, conv + "kernel_projection.weight");
    ops_.conv(sub.mixed.first(s.rows), normed, sub.dynamic.first(s.rows),
              s.vector(conv + "base_kernel"), conv_shape(0));
}

// to = sub.in + conv(sub.out)
template <class T>
void TrainModel<T>::leave(Array<T>& to, const Sublayer& sub, const Step& s,
                          const std::string& conv) {
    ops_.conv(to.first(s.rows), sub.out.first(s.rows), sub.dynamic.first(s.rows),
              s.vector(conv + "base_kernel"), conv_shape(1));
    ops_.add(to.first(s.rows), sub.in.first(s.rows));
}

template <class T>
void TrainModel<T>::attend(size_t layer, const Step& s) {
    Tape& tape = tapes_[layer];
    const std::string p = of_layer(layer, "self_attn.");
    const int64_t dim = config_.head_dim;
    enter(tape.attention, s, of_layer(layer, "input_layernorm.weight"),
          of_layer(layer, "attention_conv."));
    const View<const T> y = tape.attention.mixed.first(s.rows);
    const View<const T> context = context_.first(s.context);
    const auto head = [&](const Array<T>& raw, const Array<T>& out, int64_t rows,
                          const int32_t* positions, const char* norm) {
        ops_.rms_norm(out.first(rows).reshape(dim), raw.first(rows).reshape(dim),
                      s.vector(p + norm), eps_);
        ops_.rope(out.first(rows), positions, dim, config_.rope_theta, false);
    };
    s.linear(tape.q_raw.first(s.rows), y, p + "q_proj.weight");
    s.linear(tape.k_raw.first(s.rows), y, p + "k_proj.weight");
    s.linear(tape.v.first(s.rows), y, p + "v_proj.weight");
    s.linear(tape.context_k_raw.first(s.context), context, p + "k_proj.weight");
    s.linear(tape.context_v.first(s.context), context, p + "v_proj.weight");
    head(tape.q_raw, tape.q, s.rows, s.pass.block_positions, "q_norm.weight");
    head(tape.k_raw, tape.k, s.rows, s.pass.block_positions, "k_norm.weight");
    head(tape.context_k_raw, tape.context_k, s.context, s.pass.context_positions, "k_norm.weight");
    ops_.attention(tape.attended.first(s.rows), attention_inputs(tape, s), attention_shape(layer),
                   s.pass.plan);
    s.linear(tape.attention.out.first(s.rows), tape.attended.first(s.rows), p + "o_proj.weight");
    leave(tape.mlp.in, tape.attention, s, of_layer(layer, "attention_conv."));
}

template <class T>
void TrainModel<T>::feed(size_t layer, const Step& s) {
    Tape& tape = tapes_[layer];
    const std::string p = of_layer(layer, "mlp.");
    enter(tape.mlp, s, of_layer(layer, "post_attention_layernorm.weight"),
          of_layer(layer, "mlp_conv."));
    const View<const T> y = tape.mlp.mixed.first(s.rows);
    s.linear(tape.gate.first(s.rows), y, p + "gate_proj.weight");
    s.linear(tape.up.first(s.rows), y, p + "up_proj.weight");
    ops_.swiglu(tape.product.first(s.rows), tape.gate.first(s.rows), tape.up.first(s.rows));
    s.linear(tape.mlp.out.first(s.rows), tape.product.first(s.rows), p + "down_proj.weight");
    Array<T>& next = layer + 1 < tapes_.size() ? tapes_[layer + 1].attention.in : last_;
    leave(next, tape.mlp, s, of_layer(layer, "mlp_conv."));
}

template <class T>
View<const T> TrainModel<T>::forward(const T* weights, const TrainPass<T>& pass) {
    const Step s{parameters_,   ops_, weights, nullptr, 0, pass, pass.blocks * config_.block_size,
                 pass.taps.rows};
    require(pass.blocks <= limits_.blocks && s.context <= limits_.context,
            "a pass within the limits of training");
    s.linear(context_raw_.first(s.context), pass.taps, "fc.weight");
    ops_.rms_norm(context_.first(s.context), context_raw_.first(s.context),
                  s.vector("hidden_norm.weight"), eps_);
    ops_.take_rows(tapes_.front().attention.in.first(s.rows), pass.block_tokens, embedding_);
    for (size_t l = 0; l < tapes_.size(); ++l) {
        attend(l, s);
        feed(l, s);
    }
    ops_.rms_norm(hidden_.first(s.rows), last_.first(s.rows), s.vector("norm.weight"), eps_);
    return hidden_.first(s.rows);
}

template <class T>
void TrainModel<T>::leave_back(const Sublayer& sub, const Step& s, const std::string& conv) {
    ops_.conv_back({back_.out.first(s.rows), back_.dynamic.first(s.rows),
                    s.gradient_of(conv + "base_kernel"), false},
                   back_.rows.first(s.rows), sub.out.first(s.rows), sub.dynamic.first(s.rows),
                   s.vector(conv + "base_kernel"), conv_shape(1));
}

template <class T>
void TrainModel<T>::enter_back(const Sublayer& sub, const Step& s, const std::string& norm,
                               const std::string& conv) {
    const View<T> dnormed = back_.normed.first(s.rows);
    ops_.conv_back(
        {dnormed, back_.dynamic.first(s.rows), s.gradient_of(conv + "base_kernel"), false},
        back_.mixed.first(s.rows), sub.normed.first(s.rows), sub.dynamic.first(s.rows),
        s.vector(conv + "base_kernel"), conv_shape(0));
    s.linear_back(dnormed, back_.dynamic.first(s.rows), sub.normed.first(s.rows),
                  conv + "kernel_projection.weight", true);
    ops_.rms_norm_back(back_.rows.first(s.rows), s.gradient_of(norm), dnormed, sub.in.first(s.rows),
                       s.vector(norm), eps_, true);
}

template <class T>
void TrainModel<T>::feed_back(size_t layer, const Step& s) {
    const Tape& tape = tapes_[layer];
    const std::string p = of_layer(layer, "mlp.");
    const std::string conv = of_layer(layer, "mlp_conv.");
    const View<const T> y = tape.mlp.mixed.first(s.rows);
    leave_back(tape.mlp, s, conv);
    s.linear_back(back_.product.first(s.rows), back_.out.first(s.rows), tape.product.first(s.rows),
                  p + "down_proj.weight", false);
    ops_.swiglu_back(back_.gate.first(s.rows), back_.up.first(s.rows), back_.product.first(s.rows),
                     tape.gate.first(s.rows), tape.up.first(s.rows));
    s.linear_back(back_.mixed.first(s.rows), back_.gate.first(s.rows), y, p + "gate_proj.weight",
                  false);
    s.linear_back(back_.mixed.first(s.rows), back_.up.first(s.rows), y, p + "up_proj.weight", true);
    enter_back(tape.mlp, s, of_layer(layer, "post_attention_layernorm.weight"), conv);
}

template <class T>
void TrainModel<T>::project_back(size_t layer, const Step& s) {
    const Tape& tape = tapes_[layer];
    const std::string p = of_layer(layer, "self_attn.");
    const int64_t dim = config_.head_dim;
    const auto head = [&](const Array<T>& d, const Array<T>& d_raw, const Array<T>& raw,
                          int64_t rows, const int32_t* positions, const char* norm) {
        ops_.rope(d.first(rows), positions, dim, config_.rope_theta, true);
        ops_.rms_norm_back(d_raw.first(rows).reshape(dim), s.gradient_of(p + norm),
                           d.first(rows).reshape(dim), raw.first(rows).reshape(dim),
                           s.vector(p + norm), eps_, false);
    };
    head(back_.q, back_.q_raw, tape.q_raw, s.rows, s.pass.block_positions, "q_norm.weight");
    head(back_.k, back_.k_raw, tape.k_raw, s.rows, s.pass.block_positions, "k_norm.weight");
    head(back_.context_k, back_.context_k_raw, tape.context_k_raw, s.context,
         s.pass.context_positions, "k_norm.weight");
    const View<const T> y = tape.attention.mixed.first(s.rows);
    const View<T> dy = back_.mixed.first(s.rows);
    s.linear_back(dy, back_.q_raw.first(s.rows), y, p + "q_proj.weight", false);
    s.linear_back(dy, back_.k_raw.first(s.rows), y, p + "k_proj.weight", true);
    s.linear_back(dy, back_.v.first(s.rows), y, p + "v_proj.weight", true);
    const View<const T> context = context_.first(s.context);
    const View<T> dcontext = back_.context.first(s.context);
    s.linear_back(dcontext, back_.context_k_raw.first(s.context), context, p + "k_proj.weight",
                  layer + 1 < tapes_.size());
    s.linear_back(dcontext, back_.context_v.first(s.context), context, p + "v_proj.weight", true);
}

template <class T>
void TrainModel<T>::attend_back(size_t layer, const Step& s) {
    const Tape& tape = tapes_[layer];
    const std::string conv = of_layer(layer, "attention_conv.");
    leave_back(tape.attention, s, conv);
    s.linear_back(back_.attended.first(s.rows), back_.out.first(s.rows),
                  tape.attended.first(s.rows), of_layer(layer, "self_attn.o_proj.weight"), false);
    ops_.attention_back({back_.q.first(s.rows), back_.k.first(s.rows), back_.v.first(s.rows),
                         back_.context_k.first(s.context), back_.context_v.first(s.context)},
                        back_.attended.first(s.rows), attention_inputs(tape, s),
                        attention_shape(layer), s.pass.plan);
    project_back(layer, s);
    enter_back(tape.attention, s, of_layer(layer, "input_layernorm.weight"), conv);
}

template <class T>
void TrainModel<T>::backward(const T* weights, T* gradient, TrainStage stage,
                             const TrainPass<T>& pass, View<const T> dhidden) {
    const Step s{parameters_,
                 ops_,
                 weights,
                 gradient,
                 parameters_.trained(stage),
                 pass,
                 pass.blocks * config_.block_size,
                 pass.taps.rows};
    ops_.rms_norm_back(back_.rows.first(s.rows), s.gradient_of("norm.weight"), dhidden,
                       last_.first(s.rows), s.vector("norm.weight"), eps_, false);
    for (size_t l = tapes_.size(); l-- > 0;) {
        feed_back(l, s);
        attend_back(l, s);
    }
    ops_.rms_norm_back(back_.context_raw.first(s.context), s.gradient_of("hidden_norm.weight"),
                       back_.context.first(s.context), context_raw_.first(s.context),
                       s.vector("hidden_norm.weight"), eps_, false);
    s.weight_back(back_.context_raw.first(s.context), pass.taps, "fc.weight");
}

template class TrainModel<float>;
template class TrainModel<double>;

}  // namespace quadrille
