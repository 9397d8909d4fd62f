// SPDX-License-Identifier: Apache-2.0
#include "jobs/ab/compare.h"

#include "io/h5/schema.h"
#include "io/h5/trial.h"
#include "io/output.h"
#include "io/results/generation_reader.h"
#include "jobs/ab/bootstrap.h"
#include "jobs/common/table.h"
#include "jobs/options/common_flags.h"
#include "kernels/error.h"
#include "runtime/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kSlice = 256;
// What explains that runs differ, in the order in which it is told.
constexpr std::array kExplains = {"checkpoint_digest",
                                  "drafter_digest",
                                  "k",
                                  "seed",
                                  "temperature",
                                  "top_p",
                                  "top_k",
                                  "min_p",
                                  "repetition_penalty",
                                  "max_new_tokens",
                                  "ignore_eos",
                                  "context",
                                  "accept",
                                  "backend",
                                  "decoded_form",
                                  "template_digest",
                                  "tokenizer_digest",
                                  "commit"};

struct Side {
    std::string path;
    int64_t k = 0;
    double tokens_per_second = std::nan("");  // of decode; NaN: the file does not tell
    int64_t tokens = 0;
    std::array<int64_t, 6> ends{};  // by FinishReason
    std::vector<RecordAcceptance> records{};
    // Next to the first file.
    int64_t equal = 0;
    int64_t first_record = -1;  // of the file; -1: all are equal
    int64_t first_token = -1;
    std::vector<std::string> differs{};  // fields, with both values
};

std::string field(const GenerationReader& reader, const char* name) {
    const auto value = reader.file().group("provenance").attribute(name);
    return value ? h5::describe(*value) : std::string("none");
}

void check_same_prompts(const GenerationReader& base, const GenerationReader& other) {
    const std::string expected = field(base, "prompts_digest");
    const std::string found = field(other, "prompts_digest");
    if (expected == found &&
        base.keys(0, base.record_count()) == other.keys(0, other.record_count())) {
        return;
    }
    throw Error(ErrorKind::input,
                fmt::format("{}: expected the prompts of {} (digest {}, {} records), found digest "
                            "{}, {} records",
                            other.path().string(), base.path().string(), expected,
                            base.record_count(), found, other.record_count()));
}

void note_difference(Side& side, const Generation& base, const Generation& other) {
    const auto [a, b] = std::ranges::mismatch(base.tokens, other.tokens);
    const bool tokens = a == base.tokens.end() && b == other.tokens.end();
    if (tokens && base.status == other.status && base.finish_reason == other.finish_reason) {
        ++side.equal;
    } else if (side.first_record < 0) {
        side.first_record = other.prompt_index;
        side.first_token = b - other.tokens.begin();
    }
}

Side read_side(const GenerationReader& base, const GenerationReader& reader) {
    Side side{.path = reader.path().string(), .k = reader.layout().k};
    const auto rate = reader.file().group("provenance").attribute("decode_rate");
    if (rate && std::holds_alternative<double>(*rate)) {
        side.tokens_per_second = std::get<double>(*rate);
    }
    for (const char* name : kExplains) {
        const std::string mine = field(reader, name);
        const std::string theirs = field(base, name);
        if (mine != theirs) side.differs.push_back(fmt::format("{} {}, {}", name, theirs, mine));
    }
    for (int64_t first = 0; first < reader.record_count(); first += kSlice) {
        const int64_t count = std::min(kSlice, reader.record_count() - first);
        const std::vector<Generation> expected = base.read(first, count);
        const std::vector<Generation> found = reader.read(first, count);
        for (size_t i = 0; i < found.size(); ++i) {
            const Generation& g = found[i];
            note_difference(side, expected[i], g);
            side.tokens += std::ssize(g.tokens);
            ++side.ends.at(static_cast<size_t>(g.finish_reason));
            side.records.push_back({.steps = g.acceptance.steps,
                                    .accepted = g.acceptance.accepted,
                                    .by_position = g.acceptance.by_position});
        }
    }
    return side;
}

std::string text_of(const Interval& x) {
    if (std::isnan(x.value)) return "-";
    return fmt::format("{:.3f} [{:.3f}, {:.3f}]", x.value, x.low, x.high);
}

ordered_json json_of(const Interval& x) {
    const auto number = [](double v) {
        return std::isfinite(v) ? ordered_json(v) : ordered_json(nullptr);
    };
    return {{"value", number(x.value)}, {"low", number(x.low)}, {"high", number(x.high)}};
}

// Tables of all files, and the same as JSON.
struct Comparison {
    Table outputs{"lrrlrrrrrr"};
    Table acceptance;
    ordered_json files = ordered_json::array();

    explicit Comparison(int64_t k) : acceptance("lll" + std::string(static_cast<size_t>(k), 'l')) {
        outputs.row({"file", "tokens", "equal to A", "first difference", "eos", "stop", "length",
                     "context", "error", "tokens/s"});
        std::vector<std::string> head = {"file", "K", "accept length"};
        for (int64_t i = 1; i <= k; ++i) head.push_back(fmt::format("draft {}", i));
        acceptance.row(head);
    }

    void add(char letter, const Side& side, int64_t resamples, int64_t k) {
        const auto end = [&](FinishReason reason) {
            return fmt::to_string(side.ends[static_cast<size_t>(reason)]);
        };
        using enum FinishReason;
        const double rate = side.tokens_per_second;
        outputs.row({std::string(1, letter), fmt::to_string(side.tokens),
                     fmt::format("{} of {}", side.equal, side.records.size()),
                     side.first_record < 0
                         ? ""
                         : fmt::format("record {}, token {}", side.first_record, side.first_token),
                     end(eos), end(stop), end(length), end(context), end(error),
                     std::isnan(rate) ? "" : fmt::format("{:.1f}", rate)});
        const std::array<std::vector<RecordAcceptance>, 1> records = {side.records};
        const DrafterAcceptance result = compare_acceptance(records, side.k, resamples).front();
        std::vector<std::string> row = {std::string(1, letter), fmt::to_string(side.k),
                                        text_of(result.accept_length)};
        ordered_json positions = ordered_json::array();
        for (const Interval& share : result.by_position) {
            row.push_back(text_of(share));
            positions.push_back(json_of(share));
        }
        row.resize(static_cast<size_t>(k) + 3);
        acceptance.row(row);
        ordered_json ends;
        for (size_t i = 0; i < side.ends.size(); ++i) ends[schema::kFinishNames[i]] = side.ends[i];
        files.push_back(
            {{"file", side.path},
             {"records", side.records.size()},
             {"tokens", side.tokens},
             {"equal", side.equal},
             {"first_different_record", side.first_record},
             {"first_different_token", side.first_token},
             {"differs_in", side.differs},
             {"k", side.k},
             {"accept_length", json_of(result.accept_length)},
             {"by_position", positions},
             {"tokens_per_second", std::isnan(rate) ? ordered_json() : ordered_json(rate)},
             {"finish_reasons", ends}});
    }
};

}  // namespace

void add_flags(CLI::App& app, CompareOptions& options) {
    add_flags(app, static_cast<AbOptions&>(options));
    app.remove_option(app.get_option("--prompts"));
    app.get_option("inputs")->description("generations of the same prompts");
}

void finish(CompareOptions& options, const Invocation& /*invocation*/) {
    if (options.inputs.size() >= 2) return;
    throw Error(ErrorKind::usage, "compare: expected at least two generations files");
}

int run_compare(const CompareOptions& options) {
    try_files({options.inputs.begin(), options.inputs.end()});
    std::vector<Side> sides;
    const GenerationReader base(options.inputs[0], schema::kGenerations);
    int64_t most = 0;
    for (const std::string& path : options.inputs) {
        const GenerationReader reader(path, schema::kGenerations);
        check_same_prompts(base, reader);
        sides.push_back(read_side(base, reader));
        most = std::max(most, sides.back().k);
    }
    Comparison comparison(most);
    std::string text;
    for (size_t i = 0; i < sides.size(); ++i) {
        const char letter = static_cast<char>('A' + i);
        comparison.add(letter, sides[i], options.resamples, most);
        text += fmt::format("{}: {}\n", letter, sides[i].path);
        for (const std::string& line : sides[i].differs) text += fmt::format("   {}\n", line);
    }
    show(stdout, text + "\n" + comparison.outputs.text() + "\n" + comparison.acceptance.text());
    if (options.json.empty()) return kSuccess;
    const auto objection = [](const std::filesystem::path& path) {
        return not_json(path, "a report of compare, which is replaced", {"files"});
    };
    const std::filesystem::path report =
        output_path(options.json, {.option = "--json",
                                   .overwrite = true,
                                   .taken = {options.inputs.begin(), options.inputs.end()},
                                   .objection = objection});
    const ordered_json document = {{"files", comparison.files}};
    replace_file(report, document.dump(2) + "\n");
    return kSuccess;
}

}  // namespace quadrille
