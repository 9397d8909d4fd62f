// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibration/moe_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace quadrille {
namespace {

constexpr int64_t kRowsAnInput = 2;      // that a Hessian needs at least
constexpr float kWeightOfOthers = 0.1f;  // of a row that goes elsewhere, over a routed row's mean

}  // namespace

MoeInputs::MoeInputs(Backend& backend, const Checkpoint& checkpoint, const SublayerPlace& place,
                     CalibrationRows& rows)
    : backend_(backend),
      checkpoint_(checkpoint),
      config_(place.config),
      prefix_(place.prefix + "mlp."),
      max_rows_(rows.limits().max_rows),
      rows_(rows.rows()) {
    const int64_t hidden = config_.hidden_size;
    const int64_t top = config_.experts_per_token;
    WeightLoader loader(backend, checkpoint);
    const HyperSite site = load_site(loader, config_, place.prefix, SiteKind::ffn);
    const Matrix router = loader.matrix(prefix_ + "gate", config_.num_experts, hidden);
    const float* const bias =
        loader.vector(prefix_ + "gate.e_score_correction_bias", config_.num_experts);
    loader.read();
    HyperPass hyper(backend, config_, max_rows_);
    const Array<float> logits(backend, max_rows_, config_.num_experts);
    const Array<int32_t> ids(backend, max_rows_, top);
    const Array<float> weights(backend, max_rows_, top);
    in_.resize(static_cast<size_t>(rows_ * hidden));
    ids_.resize(static_cast<size_t>(rows_ * top));
    weights_.resize(static_cast<size_t>(rows_ * top));
    rows.look([&](View<float> streams, const Rows& pass, int64_t first) {
        const int64_t m = streams.rows;
        const View<const float> in = hyper.enter(site, streams);
        backend.linear(logits.first(m), in, router);
        backend.route(ids.first(m), weights.first(m), logits.first(m), bias,
                      static_cast<float>(config_.routed_scaling_factor), pass);
        backend.download(in_.data() + first * hidden, in.data, m * hidden * 4);
        backend.download(ids_.data() + first * top, ids.data(), m * top * 4);
        backend.download(weights_.data() + first * top, weights.data(), m * top * 4);
    });
}

int64_t MoeInputs::routed_rows(int64_t expert) const {
    return std::ranges::count(ids_, static_cast<int32_t>(expert));
}

MoeInputs::Choice MoeInputs::choose(int64_t expert) const {
    const int64_t top = config_.experts_per_token;
    Choice choice;
    std::vector<int64_t> others;
    double sum = 0;
    for (int64_t row = 0; row < rows_; ++row) {
        const auto begin = ids_.begin() + row * top;
        const auto at = std::find(begin, begin + top, static_cast<int32_t>(expert));
        if (at == begin + top) {
            others.push_back(row);
            continue;
        }
        const float weight = weights_[static_cast<size_t>(at - ids_.begin())];
        choice.rows.push_back(row);
        choice.weights.push_back(weight * weight);
        sum += static_cast<double>(weight) * static_cast<double>(weight);
    }
    const int64_t wanted =
        kRowsAnInput * std::max(config_.hidden_size, config_.moe_intermediate_size);
    const int64_t more = std::min(wanted - std::ssize(choice.rows), std::ssize(others));
    const float mean = choice.rows.empty()
                           ? 1.0f
                           : static_cast<float>(sum / static_cast<double>(choice.rows.size()));
    for (int64_t i = 0; i < more; ++i) {  // spread over the text
        choice.rows.push_back(others[static_cast<size_t>(i * std::ssize(others) / more)]);
        choice.weights.push_back(mean * (sum > 0 ? kWeightOfOthers : 1.0f));
    }
    return choice;
}

ExpertSums MoeInputs::expert(int64_t expert) const {
    return sums(fmt::format("{}experts.{}.", prefix_, expert), config_.moe_intermediate_size,
                choose(expert));
}

ExpertSums MoeInputs::shared() const {
    Choice all;
    all.rows.resize(static_cast<size_t>(rows_));
    std::iota(all.rows.begin(), all.rows.end(), 0);
    all.weights.assign(static_cast<size_t>(rows_), 1.0f);
    return sums(prefix_ + "shared_experts.",
                config_.moe_intermediate_size * config_.num_shared_experts, all);
}

ExpertSums MoeInputs::sums(const std::string& prefix, int64_t width, const Choice& choice) const {
    const int64_t hidden = config_.hidden_size;
    WeightLoader loader(backend_, checkpoint_);
    const Matrix gate_weights = loader.matrix(prefix + "gate_proj", width, hidden);
    const Matrix up_weights = loader.matrix(prefix + "up_proj", width, hidden);
    loader.read();
    Array<float> in(backend_, max_rows_, hidden);
    const Array<float> gate(backend_, max_rows_, width);
    const Array<float> up(backend_, max_rows_, width);
    std::vector<float> rows(static_cast<size_t>(max_rows_ * hidden));
    std::vector<float> mid(static_cast<size_t>(max_rows_ * width));
    ExpertSums sums{.in = InputSum(backend_, hidden), .mid = InputSum(backend_, width)};
    const int64_t total = std::ssize(choice.rows);
    for (int64_t first = 0; first < total; first += max_rows_) {
        const int64_t m = std::min(max_rows_, total - first);
        for (int64_t i = 0; i < m; ++i) {
            const int64_t row = choice.rows[static_cast<size_t>(first + i)];
            std::copy_n(in_.begin() + row * hidden, hidden, rows.begin() + i * hidden);
        }
        const auto weights =
            std::span(choice.weights).subspan(static_cast<size_t>(first), static_cast<size_t>(m));
        in.upload(std::span(rows).first(static_cast<size_t>(m * hidden)));
        backend_.linear(gate.first(m), in.first(m), gate_weights);
        backend_.linear(up.first(m), in.first(m), up_weights);
        backend_.swiglu(gate.first(m), gate.first(m), up.first(m),
                        static_cast<float>(config_.swiglu_limit));
        backend_.download(mid.data(), gate.data(), m * width * 4);
        sums.in.add({rows.data(), m, hidden}, weights);
        sums.mid.add({mid.data(), m, width}, weights);
    }
    return sums;
}

}  // namespace quadrille
