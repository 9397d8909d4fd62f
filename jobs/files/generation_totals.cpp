// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/generation_totals.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <variant>

namespace quadrille {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kSlice = 256;

ordered_json number(double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json acceptance_json(const ResultSums& sums) {
    ordered_json positions = ordered_json::array();
    for (size_t i = 0; i < sums.by_position.size(); ++i) {
        positions.push_back({{"steps", sums.by_position[i]},
                             {"rate", number(sums.position_rate(i))},
                             {"error", number(sums.position_error(i))}});
    }
    return {{"records", sums.records},
            {"steps", sums.steps},
            {"drafted", sums.drafted},
            {"accepted", sums.accepted},
            {"emitted", sums.emitted},
            {"accept_length", number(sums.accept_length())},
            {"accept_length_error", number(sums.accept_length_error())},
            {"by_position", positions},
            {"histogram", sums.histogram}};
}

ordered_json value_json(const h5::Value& value) {
    return std::visit(
        [](const auto& held) -> ordered_json {
            using Held = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<Held, std::monostate>) {
                return nullptr;
            } else if constexpr (std::is_same_v<Held, double>) {
                return number(held);
            } else {
                return held;
            }
        },
        value);
}

}  // namespace

void GenerationTotals::add(const GenerationReader& reader) {
    add(reader, nullptr);
}

void GenerationTotals::add(const GenerationReader& reader, FirstOnly& first_only) {
    add(reader, &first_only);
}

void GenerationTotals::add(const GenerationReader& reader, FirstOnly* first_only) {
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        for (const Generation& generation : reader.read(first, count)) {
            if (first_only != nullptr && !(*first_only)(generation)) continue;
            sums.add(generation);
            ++status[static_cast<size_t>(generation.status)];
            ++finish[static_cast<size_t>(generation.finish_reason)];
            const std::string violation = find_violation(generation, reader.layout().k);
            if (violation.empty() || violations++ > 0) continue;
            first_violation = fmt::format("record {}: {}", generation.prompt_index, violation);
        }
    }
}

std::string generations_kind(const std::filesystem::path& path) {
    std::vector<std::string> notices;
    return schema::kind_of(h5::File::open(path), notices);
}

std::string generations_json(const RunView& view) {
    GenerationTotals totals;
    FirstOnly first_only;
    int64_t k = 0;
    bool complete = !view.parts;
    ordered_json provenance = ordered_json::object();
    for (const std::filesystem::path& path : view.files) {
        const GenerationReader reader(path, generations_kind(path));
        totals.add(reader, first_only);
        k = reader.layout().k;
        complete = complete && reader.is_complete();
        if (!reader.file().has_group("provenance")) continue;
        for (const auto& [name, value] : reader.file().group("provenance").attributes()) {
            provenance[name] = value_json(value);
        }
    }
    ordered_json kinds = ordered_json::object();
    for (const auto& [name, sums] : totals.sums.kinds) kinds[name] = acceptance_json(sums);
    ordered_json finish;
    for (size_t i = 0; i < totals.finish.size(); ++i) {
        finish[schema::kFinishNames[i]] = totals.finish[i];
    }
    const int64_t all = view.parts ? view.records : totals.sums.records;
    const ordered_json out = {{"file", view.path.string()},
                              {"kind", view.parts ? "run" : generations_kind(view.path)},
                              {"complete", complete},
                              {"records", totals.sums.records},
                              {"records_of_run", all < 0 ? ordered_json() : ordered_json(all)},
                              {"errors", totals.sums.errors},
                              {"tokens", totals.sums.tokens},
                              {"k", k},
                              {"finish_reasons", finish},
                              {"violations", totals.violations},
                              {"acceptance", acceptance_json(totals.sums)},
                              {"kinds", kinds},
                              {"provenance", provenance}};
    return out.dump(1) + '\n';
}

}  // namespace quadrille
