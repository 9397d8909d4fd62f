// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/bit_probe.h"

#include "jobs/quantize/output_distance.h"
#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace quadrille {

BitProbe::BitProbe(Communicator& world, const CalibrationModel& model, const Checkpoint& source,
                   CalibrationRows::Sequences sequences, int32_t threads)
    : world_(world),
      all_(model),
      source_(source),
      rows_(model.backend, model.config, std::move(sequences), model.rows->limits().max_rows),
      model_(model),
      threads_(threads) {
    model_.rows = &rows_;
}

CalibrationRows::Sequences BitProbe::choose(const CalibrationRows::Sequences& all) {
    int64_t rows = 0;
    for (const auto& sequence : all) rows += std::ssize(sequence);
    if (rows <= kRows) return all;
    CalibrationRows::Sequences chosen;
    // One is taken where the rows taken so far fall behind their share.
    int64_t seen = 0;
    int64_t taken = 0;
    for (const auto& sequence : all) {
        seen += std::ssize(sequence);
        if (taken * rows >= seen * kRows) continue;
        taken += std::ssize(sequence);
        chosen.push_back(sequence);
    }
    return chosen;
}

std::vector<BitGroup> BitProbe::measure(const std::vector<PlannedUnit>& units,
                                        const std::vector<ProbedPack>& packs,
                                        const PackMaker& maker) {
    for (size_t i = 0; i < units.size(); ++i) {
        std::vector<Checkpoint> files;
        std::vector<const PlannedUnit*> quantized;
        for (const ProbedPack& pack : packs) {
            const PlannedUnit& unit = pack.plan.units[i];
            if (unit.tasks.empty()) continue;
            files.push_back(maker.make(unit, pack.files, all_));
            quantized.push_back(&unit);
        }
        pass(units[i]);
        for (size_t j = 0; j < files.size(); ++j)
            begin_variants(*quantized[j], std::move(files[j]));
        pass_unit(model_, source_, units[i]);
        pass_unit(all_, source_, units[i]);
    }
    compare();
    return groups_;
}

// The rows stand before the unit, those of other groups behind it.
void BitProbe::begin_variants(const PlannedUnit& unit, Checkpoint file) {
    BitGroup group{.layer = unit.layer,
                   .kind = unit.tasks.front().kind,
                   .measured_bits = unit.tasks.front().bits};
    for (const PlannedTask& task : unit.tasks) {
        require(task.kind == group.kind, "one class of a unit is probed at once");
        group.weights += task.weights();
    }
    // What no calibration row reaches is not measured: draft layers get the bits asked for.
    if (unit.kind == UnitKind::mtp || unit.kind == UnitKind::other) return;
    const size_t index = groups_.size();
    groups_.push_back(group);
    if (index % static_cast<size_t>(world_.size()) != static_cast<size_t>(world_.rank())) return;
    Variant& variant = variants_.emplace_back();
    variant.group = index;
    if (unit.kind == UnitKind::head) {
        variant.head = &heads_.emplace_back(std::move(file));
        return;
    }
    variant.streams = rows_.streams();
    pass_unit(model_, file, unit, {&variant.streams, 1});
}

void BitProbe::pass(const PlannedUnit& unit) {
    std::vector<std::vector<float>> streams;
    for (Variant& variant : variants_) {
        if (variant.head == nullptr) streams.push_back(std::move(variant.streams));
    }
    if (!streams.empty()) pass_unit(model_, source_, unit, streams);
    size_t next = 0;
    for (Variant& variant : variants_) {
        if (variant.head == nullptr) variant.streams = std::move(streams[next++]);
    }
}

void BitProbe::compare() {
    const OutputDistance distance(model_, source_, threads_);
    std::vector<double> found(groups_.size());
    for (Variant& variant : variants_) {
        if (variant.head == nullptr) rows_.swap_streams(variant.streams);
        const std::vector<float> theirs = distance.final_rows();
        if (variant.head == nullptr) rows_.swap_streams(variant.streams);
        const Checkpoint& head = variant.head == nullptr ? source_ : *variant.head;
        found[variant.group] = distance.divergence(theirs, head);
        variant.streams = {};
    }
    std::vector<double> all(found.size() * static_cast<size_t>(world_.size()));
    world_.all_gather_host(all.data(), found.data(), std::ssize(found) * int64_t{sizeof(double)});
    for (size_t i = 0; i < groups_.size(); ++i) {
        const size_t rank = i % static_cast<size_t>(world_.size());
        groups_[i].divergence = std::max(0.0, all[rank * groups_.size() + i]);
        if (std::isfinite(groups_[i].divergence)) continue;
        throw Error(ErrorKind::input,
                    fmt::format("layer {}, {}: expected logits that are numbers from the "
                                "calibration text, found others",
                                groups_[i].layer, name(groups_[i].kind)));
    }
}

}  // namespace quadrille
