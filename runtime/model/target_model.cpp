// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/target_model.h"

#include "io/checkpoint/module_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace quadrille {

TargetModel::TargetModel(Backend& backend, Communicator& comm, Position& position,
                         const ModelConfig& config, const Checkpoint& checkpoint,
                         const ModelLimits& limits, std::vector<int64_t> taps,
                         const LoadProgress& progress)
    : backend_(backend),
      position_(position),
      config_(config),
      plan_(plan_shards(config, comm.size(), comm.rank())),
      limits_(limits),
      tap_layers_(std::move(taps)),
      loader_(backend, checkpoint, &position),
      hyper_(backend, config, limits.max_rows),
      reduce_(backend, comm, limits.max_rows, config.hidden_size),
      kda_scratch_(backend, config, plan_, limits.max_rows),
      mla_scratch_(backend, config, plan_, limits.max_rows),
      ffn_scratch_(backend, config, plan_, limits.max_rows) {
    const std::string prefix = text_prefix(checkpoint);
    const int64_t hidden = config.hidden_size;
    embedding_ = loader_.matrix(prefix + "embed_tokens", config.vocab_size, hidden);
    for (int64_t l = 0; l < config.num_layers; ++l) {
        layers_.push_back(load_layer(l, fmt::format("{}layers.{}.", prefix, l)));
    }
    final_norm_ = loader_.vector(prefix + "norm.weight", hidden);
    head_ = loader_.column_parallel("lm_head", config.vocab_size, hidden, plan_.vocab);

    const int64_t rows = limits.max_rows;
    const int64_t logit_rows = std::min<int64_t>(rows, int64_t{limits.slots} * limits.max_block);
    const int64_t streams = config.hc_mult;
    streams_ = Array<float>(backend, rows, streams * hidden);
    partial_ = Array<float>(backend, rows, hidden);
    sum_ = Array<float>(backend, rows, hidden);
    mean_ = Array<float>(backend, rows, hidden);
    taps_out_ = Array<float>(backend, rows, std::ssize(tap_layers_) * hidden);
    hidden_ = Array<float>(backend, logit_rows, hidden);
    logits_ = Array<float>(backend, logit_rows, plan_.vocab.size());
    loader_.read(progress);
}

TargetModel::Layer TargetModel::load_layer(int64_t index, const std::string& prefix) {
    Layer layer;
    layer.attention_site = load_site(loader_, config_, prefix, SiteKind::attention);
    layer.ffn_site = load_site(loader_, config_, prefix, SiteKind::ffn);
    const auto at = static_cast<size_t>(index);
    if (config_.attention[at] == AttentionKind::kda) {
        layer.kda.emplace(backend_, loader_, prefix + "self_attn.", config_, plan_, limits_.slots,
                          limits_.longest_block());
    } else {
        layer.mla.emplace(backend_, loader_, prefix + "self_attn.", config_, plan_, limits_.slots,
                          limits_.capacity, limits_.longest_block());
    }
    layer.ffn.emplace(backend_, loader_, prefix + "mlp.", config_.ffn[at], config_, plan_);
    return layer;
}

void TargetModel::leave(int64_t m) {
    position_.op("sum over ranks");
    reduce_.sum(sum_.first(m), partial_.first(m));
    hyper_.leave(streams_.first(m), sum_.first(m));
}

View<const float> TargetModel::forward(const PassInputs& pass) {
    const Rows& rows = pass.rows;
    const int64_t m = rows.m;
    rows_ = m;
    logit_count_ = pass.logit_count;
    position_.op("embed");
    backend_.embed(streams_.first(m), pass.tokens, embedding_, hyper_.params().streams);
    size_t tap = 0;
    for (size_t l = 0; l < layers_.size(); ++l) {
        const Layer& layer = layers_[l];
        position_.layer(static_cast<int32_t>(l));
        position_.op(layer.kda ? "kda" : "mla");
        View<const float> in = hyper_.enter(layer.attention_site, streams_.first(m));
        if (layer.kda) {
            layer.kda->forward(partial_.first(m), in, rows, kda_scratch_);
        } else {
            layer.mla->forward(partial_.first(m), in, rows, mla_scratch_);
        }
        leave(m);
        position_.op("ffn");
        in = hyper_.enter(layer.ffn_site, streams_.first(m));
        layer.ffn->forward(partial_.first(m), in, rows, ffn_scratch_);
        leave(m);
        if (tap < tap_layers_.size() && tap_layers_[tap] == static_cast<int64_t>(l)) {
            const int64_t column = static_cast<int64_t>(tap++) * config_.hidden_size;
            backend_.stream_mean(taps_out_.first(m).slice_cols(column, config_.hidden_size),
                                 streams_.first(m), hyper_.params().streams);
        }
    }
    position_.layer(-1);
    position_.op("head");
    const View<float> logits = logits_.first(logit_count_);
    if (logit_count_ == 0) return logits;
    backend_.stream_mean(mean_.first(m), streams_.first(m), hyper_.params().streams);
    const View<float> hidden = hidden_.first(logit_count_);
    backend_.copy_rows(hidden, mean_.first(m), pass.logit_rows);
    backend_.rms_norm(hidden, hidden, final_norm_, hyper_.params().norm_eps);
    backend_.linear(logits, hidden, head_);
    return logits;
}

void TargetModel::final_hidden(View<float> out, int64_t first) const {
    const View<const float> rows = streams_.first(rows_).slice_rows(first, out.rows);
    backend_.stream_mean(out, rows, hyper_.params().streams);
    norm_final(out);
}

void TargetModel::norm_final(View<float> rows) const {
    backend_.rms_norm(rows, rows, final_norm_, hyper_.params().norm_eps);
}

void TargetModel::flush(int32_t slot, int32_t pending, bool fresh) const {
    for (const Layer& layer : layers_) {
        if (layer.kda) layer.kda->flush(slot, pending, fresh);
    }
}

std::vector<std::vector<float>> TargetModel::download_state(int32_t slot, int64_t length) const {
    std::vector<std::vector<float>> states;
    for (const Layer& layer : layers_) {
        states.push_back(layer.kda ? layer.kda->download_state(slot)
                                   : layer.mla->download_state(slot, length));
    }
    return states;
}

std::string TargetModel::skipped_tensors() const {
    int64_t mtp = 0;
    int64_t vision = 0;
    int64_t other = 0;
    std::string example;
    for (const std::string& tensor : loader_.unused()) {
        if (is_vision(tensor)) {
            ++vision;
        } else if (layer_of(tensor) >= config_.num_layers) {
            ++mtp;
        } else {
            ++other;
            if (example.empty()) example = tensor;
        }
    }
    std::vector<std::string> parts;
    if (mtp > 0) parts.push_back(fmt::format("{} MTP", mtp));
    if (vision > 0) parts.push_back(fmt::format("{} vision", vision));
    if (other > 0) parts.push_back(fmt::format("{} unknown ({}, ...)", other, example));
    return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace quadrille
