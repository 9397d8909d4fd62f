// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/unit_inputs.h"

#include "kernels/error.h"
#include "runtime/calibration/sublayer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quadrille {
namespace {

SublayerPlace place_of(const CalibrationModel& model, const PlannedUnit& unit) {
    return {.config = model.config,
            .prefix = fmt::format("{}layers.{}.", model.prefix, unit.layer),
            .layer = unit.layer,
            .kind = unit.kind == UnitKind::ffn ? SiteKind::ffn : SiteKind::attention};
}

void download_rows(Backend& backend, std::vector<float>& host, View<const float> rows) {
    host.resize(static_cast<size_t>(rows.rows * rows.cols));
    const bool whole = rows.stride == rows.cols;
    const int64_t pieces = whole ? 1 : rows.rows;
    const int64_t values = whole ? rows.rows * rows.cols : rows.cols;
    for (int64_t i = 0; i < pieces; ++i) {
        backend.download(host.data() + i * values, rows.row(i), values * int64_t{sizeof(float)});
    }
}

bool is_sublayer(const PlannedUnit& unit) {
    return unit.kind == UnitKind::attention || unit.kind == UnitKind::ffn;
}

void forward(CalibrationRows& all, Sublayer& sublayer) {
    all.update(
        [&](View<float> streams, const Rows& rows, int64_t) { sublayer.forward(streams, rows); });
}

bool of_experts(const PlannedTask& task) {
    return task.kind == WeightClass::routed || task.kind == WeightClass::shared;
}

}  // namespace

UnitInputs::UnitInputs(const CalibrationModel& model, const Checkpoint& source,
                       const PlannedUnit& unit, const std::vector<const PlannedTask*>& own)
    : model_(model) {
    if (model_.rows == nullptr || own.empty()) return;
    if (unit.kind == UnitKind::head) {
        observe_head(source, *own.front());
    } else if (is_sublayer(unit)) {
        if (std::ranges::any_of(own, [](const PlannedTask* task) { return of_experts(*task); })) {
            moe_.emplace(model_.backend, source, place_of(model_, unit), *model_.rows);
        } else {
            observe(source, unit, own);
        }
    }
}

// The matrices of a task have the same inputs: the first one's are summed.
void UnitInputs::observe(const Checkpoint& source, const PlannedUnit& unit,
                         const std::vector<const PlannedTask*>& own) {
    std::map<std::string, InputSum*> watched;  // by module
    for (const PlannedTask* task : own) {
        const PlannedMatrix& first = task->matrices.front();
        const auto [at, added] = sums_.try_emplace(task->name, model_.backend, first.k);
        watched.emplace(first.module, &at->second);
    }
    std::optional<Sublayer> sublayer;
    std::vector<float> host;
    InputObserver observer(model_.backend, [&](const void* weights, View<const float> in) {
        const std::string* const module = sublayer->loader().module_at(weights);
        const auto found = module == nullptr ? watched.end() : watched.find(*module);
        if (found == watched.end()) return;
        download_rows(model_.backend, host, in);
        found->second->add({host.data(), in.rows, in.cols});
    });
    sublayer.emplace(observer, source, place_of(model_, unit), model_.rows->limits());
    model_.rows->look(
        [&](View<float> streams, const Rows& rows, int64_t) { sublayer->forward(streams, rows); });
    for (const auto& [module, sum] : watched) {
        require(sum->rows() + sum->left_out() == model_.rows->rows(),
                "every calibration row is seen at every matrix");
    }
}

void UnitInputs::observe_head(const Checkpoint& source, const PlannedTask& task) {
    const FinalRows final(model_, source);
    const int64_t hidden = model_.config.hidden_size;
    InputSum& sum = sums_.try_emplace(task.name, model_.backend, hidden).first->second;
    std::vector<float> host;
    model_.rows->look([&](View<float> streams, const Rows&, int64_t) {
        const View<const float> rows = final.of(streams);
        download_rows(model_.backend, host, rows);
        sum.add({host.data(), rows.rows, hidden});
    });
}

FinalRows::FinalRows(const CalibrationModel& model, const Checkpoint& checkpoint)
    : model_(model),
      loader_(model.backend, checkpoint),
      norm_(loader_.vector(model.prefix + "norm.weight", model.config.hidden_size)),
      rows_(model.backend, model.rows->limits().max_rows, model.config.hidden_size) {
    loader_.read();
}

View<const float> FinalRows::of(View<float> streams) const {
    const HyperParams params = hyper_params(model_.config);
    const View<float> rows = rows_.first(streams.rows);
    model_.backend.stream_mean(rows, streams, params.streams);
    model_.backend.rms_norm(rows, rows, norm_, params.norm_eps);
    return rows;
}

std::vector<const InputSum*> UnitInputs::of(const PlannedTask& task) {
    if (moe_ && of_experts(task)) {
        expert_.emplace(task.kind == WeightClass::routed ? moe_->expert(task.expert)
                                                         : moe_->shared());
        std::vector<const InputSum*> sums;
        for (const PlannedMatrix& matrix : task.matrices) {
            sums.push_back(matrix.module.ends_with("down_proj") ? &expert_->mid : &expert_->in);
        }
        return sums;
    }
    const auto found = sums_.find(task.name);
    return {task.matrices.size(), found == sums_.end() ? nullptr : &found->second};
}

void pass_unit(const CalibrationModel& model, const Checkpoint& checkpoint,
               const PlannedUnit& unit) {
    if (model.rows == nullptr) return;
    if (unit.kind == UnitKind::embedding) {
        WeightLoader loader(model.backend, checkpoint);
        const Matrix table = loader.matrix(model.prefix + "embed_tokens", model.config.vocab_size,
                                           model.config.hidden_size);
        loader.read();
        model.rows->embed(table);
    } else if (is_sublayer(unit)) {
        Sublayer sublayer(model.backend, checkpoint, place_of(model, unit), model.rows->limits());
        forward(*model.rows, sublayer);
    }
}

void pass_unit(const CalibrationModel& model, const Checkpoint& checkpoint, const PlannedUnit& unit,
               std::span<std::vector<float>> streams) {
    if (!is_sublayer(unit)) return;
    Sublayer sublayer(model.backend, checkpoint, place_of(model, unit), model.rows->limits());
    for (std::vector<float>& own : streams) {
        model.rows->swap_streams(own);
        forward(*model.rows, sublayer);
        model.rows->swap_streams(own);
    }
}

}  // namespace quadrille
