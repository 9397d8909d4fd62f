// SPDX-License-Identifier: Apache-2.0
#include "jobs/ab/ab.h"

#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "io/results/generation_reader.h"
#include "jobs/ab/bootstrap.h"
#include "jobs/common/table.h"
#include "kernels/error.h"
#include "runtime/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kSlice = 256;
// What must be equal for a comparison of drafters.
constexpr std::array kCommon = {"checkpoint_digest",
                                "prompts_digest",
                                "k",
                                "temperature",
                                "top_p",
                                "top_k",
                                "min_p",
                                "seed",
                                "samples",
                                "shard",
                                "accept",
                                "max_new_tokens"};

struct Side {
    std::string path;
    std::string draft;
    double tokens_per_second = 0;  // NaN: the file does not tell
    int64_t k = 0;
    std::vector<RecordKey> keys;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::string> kinds;
    std::vector<RecordAcceptance> records;
};

std::string field(const h5::Group& provenance, const char* name) {
    const auto value = provenance.attribute(name);
    return value ? h5::describe(*value) : std::string("none");
}

Side read_side(const std::string& path) {
    const GenerationReader reader(path, schema::kGenerations);
    const h5::Group provenance = reader.file().group("provenance");
    Side side{.path = path,
              .draft = field(provenance, "draft"),
              .tokens_per_second = std::nan(""),
              .k = reader.layout().k,
              .keys = reader.keys(0, reader.record_count()),
              .tokens = {},
              .kinds = {},
              .records = {}};
    const auto rate = provenance.attribute("decode_rate");
    if (rate && std::holds_alternative<double>(*rate)) {
        side.tokens_per_second = std::get<double>(*rate);
    }
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        for (Generation& g : reader.read(first, count)) {
            side.records.push_back({.steps = g.acceptance.steps,
                                    .accepted = g.acceptance.accepted,
                                    .by_position = std::move(g.acceptance.by_position)});
            side.tokens.push_back(std::move(g.tokens));
            side.kinds.push_back(std::move(g.kind));
        }
    }
    return side;
}

void check_common(const std::vector<std::string>& paths) {
    std::map<std::string, std::string> first;
    for (const std::string& path : paths) {
        const GenerationReader reader(path, schema::kGenerations);
        const h5::Group provenance = reader.file().group("provenance");
        for (const char* name : kCommon) {
            const std::string value = field(provenance, name);
            const auto there = first.try_emplace(name, value).first;
            if (there->second == value) continue;
            throw Error(ErrorKind::input, fmt::format("{}: {}: expected {}, as in {}, found {}",
                                                      path, name, there->second, paths[0], value));
        }
    }
}

// By record; all of kind "all" where neither the prompts nor the file tell.
std::vector<std::string> kinds_of(const AbOptions& options, const Side& side) {
    const bool known = std::ranges::any_of(side.kinds, [](const auto& k) { return !k.empty(); });
    std::vector<std::string> kinds(side.keys.size(), "all");
    if (options.prompts.empty()) return known ? side.kinds : kinds;
    const h5::Dataset dataset = h5::File::open(options.prompts).dataset("prompts/kind");
    const std::vector<std::string> all = dataset.read_strings(0, dataset.rows());
    for (size_t i = 0; i < kinds.size(); ++i) {
        const int64_t prompt = side.keys[i].prompt_index;
        if (prompt >= std::ssize(all)) {
            throw Error(ErrorKind::input, fmt::format("{}: expected a kind for prompt {}, found {}",
                                                      dataset.where(), prompt, all.size()));
        }
        kinds[i] = all[static_cast<size_t>(prompt)];
    }
    return kinds;
}

std::string text_of(const Interval& x, const char* form) {
    if (std::isnan(x.value)) return "-";
    return fmt::format("{} [{}, {}]", fmt::format(fmt::runtime(form), x.value),
                       fmt::format(fmt::runtime(form), x.low),
                       fmt::format(fmt::runtime(form), x.high));
}

std::string percent(Interval x) {
    for (double* value : {&x.value, &x.low, &x.high}) *value *= 100;
    return text_of(x, "{:+.1f} %");
}

ordered_json json_of(const Interval& x) {
    const auto number = [](double v) {
        return std::isfinite(v) ? ordered_json(v) : ordered_json(nullptr);
    };
    return {{"value", number(x.value)}, {"low", number(x.low)}, {"high", number(x.high)}};
}

class Report {
  public:
    Report(const std::vector<Side>& sides, int64_t resamples)
        : sides_(sides),
          resamples_(resamples),
          table_("llr" + std::string("llr") + std::string(positions(), 'l')) {
        std::vector<std::string> head = {"kind",          "drafter", "records",
                                         "accept length", "over A",  "tokens/s"};
        for (int64_t i = 1; i <= sides[0].k; ++i) head.push_back(fmt::format("draft {}", i));
        table_.row(head);
    }

    // Records of one kind; `name` of all of them: "all".
    void add(const std::string& name, const std::vector<size_t>& which) {
        std::vector<std::vector<RecordAcceptance>> chosen(sides_.size());
        for (size_t d = 0; d < sides_.size(); ++d) {
            for (const size_t i : which) chosen[d].push_back(sides_[d].records[i]);
        }
        const auto results = compare_acceptance(chosen, sides_[0].k, resamples_);
        for (size_t d = 0; d < results.size(); ++d) {
            add_row(name, d, std::ssize(which), results[d]);
        }
    }
    std::string text() const { return table_.text(); }
    const ordered_json& rows() const { return rows_; }

  private:
    size_t positions() const { return static_cast<size_t>(sides_[0].k); }
    void add_row(const std::string& kind, size_t d, int64_t records,
                 const DrafterAcceptance& result) {
        const std::string letter(1, static_cast<char>('A' + d));
        const double rate = kind == "all" ? sides_[d].tokens_per_second : std::nan("");
        std::vector<std::string> row = {kind,
                                        letter,
                                        fmt::format("{}", records),
                                        text_of(result.accept_length, "{:.3f}"),
                                        d == 0 ? "" : percent(result.gain),
                                        std::isnan(rate) ? "" : fmt::format("{:.1f}", rate)};
        ordered_json by_position = ordered_json::array();
        for (const Interval& share : result.by_position) {
            row.push_back(text_of(share, "{:.3f}"));
            by_position.push_back(json_of(share));
        }
        table_.row(row);
        rows_.push_back({{"kind", kind},
                         {"drafter", letter},
                         {"records", records},
                         {"accept_length", json_of(result.accept_length)},
                         {"gain", json_of(result.gain)},
                         {"by_position", by_position}});
    }

    const std::vector<Side>& sides_;
    int64_t resamples_;
    Table table_;
    ordered_json rows_ = ordered_json::array();
};

// Speculation is lossless: the same target on the same backend writes the same tokens.
int64_t count_different(const Side& a, const Side& b) {
    int64_t different = 0;
    for (size_t i = 0; i < a.tokens.size(); ++i) different += a.tokens[i] != b.tokens[i] ? 1 : 0;
    return different;
}

void write_json(const AbOptions& options, const std::vector<Side>& sides, const Report& report) {
    ordered_json drafters = ordered_json::array();
    for (const Side& side : sides) {
        const double rate = side.tokens_per_second;
        drafters.push_back(
            {{"file", side.path},
             {"draft", side.draft},
             {"tokens_per_second", std::isnan(rate) ? ordered_json(nullptr) : ordered_json(rate)}});
    }
    const ordered_json all = {{"k", sides[0].k},
                              {"resamples", options.resamples},
                              {"drafters", drafters},
                              {"results", report.rows()}};
    const auto objection = [](const std::filesystem::path& path) {
        return not_json(path, "a report of ab, which is replaced", {"drafters", "results"});
    };
    replace_file(output_path(options.json, {.option = "--json",
                                            .overwrite = true,
                                            .taken = {options.inputs.begin(), options.inputs.end()},
                                            .objection = objection}),
                 all.dump(2) + "\n");
}

}  // namespace

int run_ab(const AbOptions& options) {
    try_files({options.inputs.begin(), options.inputs.end()});
    check_common(options.inputs);
    std::vector<Side> sides;
    for (const std::string& path : options.inputs) {
        sides.push_back(read_side(path));
        if (sides.back().keys == sides[0].keys && sides.back().k == sides[0].k) continue;
        throw Error(ErrorKind::input, fmt::format("{}: expected the records and the K of {}", path,
                                                  options.inputs[0]));
    }
    const std::vector<std::string> kinds = kinds_of(options, sides[0]);
    std::map<std::string, std::vector<size_t>> by_kind;
    std::vector<size_t> every;
    for (size_t i = 0; i < kinds.size(); ++i) {
        every.push_back(i);
        by_kind[kinds[i]].push_back(i);
    }
    Report report(sides, options.resamples);
    report.add("all", every);
    if (!options.prompts.empty()) {
        for (const auto& [kind, which] : by_kind) report.add(kind.empty() ? "none" : kind, which);
    }
    std::string text;
    for (size_t d = 0; d < sides.size(); ++d) {
        text += fmt::format("{}: {}, drafter {}\n", static_cast<char>('A' + d), sides[d].path,
                            sides[d].draft);
        const int64_t different = count_different(sides[0], sides[d]);
        if (different > 0) {
            text += fmt::format("   {} of {} records have other tokens than A's\n", different,
                                every.size());
        }
    }
    show(stdout, text + report.text());
    if (!options.json.empty()) write_json(options, sides, report);
    return kSuccess;
}

}  // namespace quadrille
