// SPDX-License-Identifier: Apache-2.0
#include "jobs/probe/draft_reading.h"

#include "io/checkpoint/module_names.h"

#include <algorithm>

namespace quadrille {
namespace {

constexpr const char* kFc = "fc.weight";

}  // namespace

DraftReading::DraftReading(ModelSession& session, const std::filesystem::path& folder)
    : session_(session),
      folder_(folder),
      files_(open_drafter({.folder = folder, .placement = DraftPlacement::replicated, .k = 1},
                          session.models().config(), session.group().size(),
                          session.group().rank())),
      parameters_(files_.config),
      backend_(make_backend("cpu")),
      alone_(make_self_comm()) {}

void DraftReading::load(const TrainData& data) {
    data_ = &data;
    TrainerOptions options;
    options.parts = 1;
    trainer_.emplace(*backend_, *alone_, config(), parameters_,
                     TrainLimits{data.context_limit(), data.block_limit()}, options);
    const Checkpoint& target = session_.models().checkpoint();
    const auto matrix = [&](const std::string& name) {
        return read_matrix(target, name, config().vocab_size, config().hidden_size);
    };
    trainer_->load(read_parameters(parameters_, files_.checkpoint),
                   matrix(text_prefix(target) + "embed_tokens"), matrix("lm_head"));
}

Served DraftReading::measure(const std::vector<int64_t>& sequences) {
    Served served(config().block_size - 1);
    for (const int64_t sequence : sequences) {
        session_.position().enter(sequence, "drafter");
        const std::vector<int64_t> anchors = data_->anchors_of(sequence);
        std::vector<int32_t> runs, best_runs;
        for (auto from = anchors.begin(); from != anchors.end();) {
            const auto to = from + std::min(data_->block_limit(), anchors.end() - from);
            const LossReport report = trainer_->losses(data_->batch_at(sequence, {from, to}));
            runs.insert(runs.end(), report.runs.begin(), report.runs.end());
            best_runs.insert(best_runs.end(), report.best_runs.begin(), report.best_runs.end());
            served.blocks.add(report);
            from = to;
        }
        served.follow(anchors, runs, best_runs);
    }
    return served;
}

std::vector<float> DraftReading::fc() const {
    const Parameter& p = parameters_.get(kFc);
    const auto values =
        trainer_->weights().subspan(static_cast<size_t>(p.offset), static_cast<size_t>(p.count));
    return {values.begin(), values.end()};
}

void DraftReading::set_fc(const std::vector<float>& values) {
    std::ranges::copy(values, trainer_->weights().begin() + parameters_.get(kFc).offset);
}

void DraftReading::write(const std::filesystem::path& folder) {
    write_drafter(folder, parameters_, trainer_->weights(), folder_ / "config.json");
}

}  // namespace quadrille
