// SPDX-License-Identifier: Apache-2.0
// The whole program against the goldens of tests/data/demo_golden.h5, by files:
//   golden_files prompts OUT.h5          its prompts as a prompts file, with ids and seeds
//   golden_files reversed OUT.h5         the same records in the other order
//   golden_files same A B...             the records of A, matched by id: tokens, end and
//                                        log-probabilities bit for bit
//   golden_files compare PACK FILE...    generations of these prompts: the tokens of every record
//                                        are the golden ones up to the first gap between the two
//                                        best logits that a GPU's tolerance may turn
//   golden_files heldout HELDOUT.h5 KIND OUT.h5   the held-out texts of a kind, or of `all`, as a
//                                        prompts file
//   golden_files calibration CORPUS.h5 OUT.h5     its calibration rows as a prompts file
//   golden_files nll PACK KIND           the golden NLL of a token of those
// Prints what differs; exit 1 if anything does.
#include "io/h5/schema.h"
#include "io/prompts/option_table.h"
#include "io/prompts/prompt_writer.h"
#include "io/results/generation_reader.h"
#include "tests/support/golden.h"
#include "tests/support/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace quadrille;
using namespace quadrille::test;

void write_prompts(const std::string& out, bool reversed) {
    auto prompts = Golden(data_path("demo_golden.h5")).read_ragged<int32_t>("/prompts");
    const auto seed = static_cast<size_t>(
        std::ranges::find(options::kInts, std::string("seed"), &options::IntOption::name) -
        options::kInts.begin());
    std::vector<PromptRecord> records(prompts.size());
    PromptColumns columns;
    columns.text = false;
    columns.id = PromptColumns::Id::integers;
    for (size_t i = 0; i < records.size(); ++i) {
        records[i].prompt = std::move(prompts[i]);
        records[i].id = static_cast<int64_t>(i);
        records[i].ints[seed] = static_cast<int64_t>(i) + 1;
        columns.note(records[i]);
    }
    if (reversed) std::reverse(records.begin(), records.end());
    PromptWriter writer(out, columns);
    for (PromptRecord& record : records) writer.add(std::move(record));
    writer.finish();
}

// Those that are not empty, with their places as ids.
void write_texts(const std::vector<std::vector<int32_t>>& texts, const std::string& out) {
    PromptColumns columns;
    columns.text = false;
    columns.id = PromptColumns::Id::integers;
    PromptWriter writer(out, columns);
    for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].empty()) continue;
        PromptRecord record;
        record.prompt = texts[i];
        record.id = static_cast<int64_t>(i);
        writer.add(std::move(record));
    }
    writer.finish();
}

void write_heldout(const std::string& in, const std::string& kind, const std::string& out) {
    const Golden heldout(in);
    auto texts = heldout.read_ragged<int32_t>("/tokens");
    const std::vector<std::string> kinds = heldout.read_strings("/kind");
    for (size_t i = 0; i < texts.size(); ++i) {
        if (kind != "all" && kinds.at(i) != kind) texts[i].clear();
    }
    write_texts(texts, out);
}

void write_calibration(const std::string& in, const std::string& out) {
    const auto rows = Golden(in).read<int32_t>("/calibration");
    std::vector<std::vector<int32_t>> texts;
    const int64_t length = rows.shape.at(1);
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
        const auto first = rows.values.begin() + i * length;
        texts.emplace_back(first, first + length);
    }
    write_texts(texts, out);
}

std::map<RecordId, Generation> by_id(const std::string& file) {
    const GenerationReader reader(file, schema::kGenerations);
    std::map<RecordId, Generation> records;
    for (Generation& record : reader.read(0, reader.record_count())) {
        records[record.id] = std::move(record);
    }
    return records;
}

// Records of `other` that are not those of `file`.
int64_t same(const std::string& file, const std::string& other) {
    const auto left = by_id(file);
    const auto right = by_id(other);
    const auto bits = [](const std::vector<float>& values) {
        std::vector<uint32_t> out(values.size());
        for (size_t i = 0; i < values.size(); ++i) out[i] = std::bit_cast<uint32_t>(values[i]);
        return out;
    };
    const auto told = [&](const Generation& g) {
        return std::tuple(g.tokens, g.status, g.finish_reason, bits(g.chosen_logprobs), g.top_ids,
                          bits(g.top_logprobs));
    };
    int64_t differing = std::abs(std::ssize(left) - std::ssize(right));
    for (const auto& [id, record] : left) {
        const auto found = right.find(id);
        if (found != right.end() && told(record) == told(found->second)) continue;
        ++differing;
    }
    fmt::print("{} and {}: {} of {} records differ\n", file, other, differing, left.size());
    return left.empty() ? 1 : differing;
}

// Records of `file` that differ.
int64_t compare(const std::string& pack, const std::string& file) {
    const Golden golden(data_path("demo_golden.h5"));
    const auto greedy = golden.read_ragged<int32_t>("/" + pack + "/greedy");
    const auto gaps = golden.read_ragged<float>("/" + pack + "/greedy_gap");
    const GenerationReader reader(file, schema::kGenerations);
    if (reader.record_count() > std::ssize(greedy) || reader.record_count() == 0) {
        fmt::print("{}: {} records, at most {} expected\n", file, reader.record_count(),
                   greedy.size());
        return 1;
    }
    int64_t differing = 0;
    int64_t compared = 0;
    for (const Generation& found : reader.read(0, reader.record_count())) {
        const auto i = static_cast<size_t>(found.prompt_index);
        const auto small = std::find_if(gaps[i].begin(), gaps[i].end(), [](float gap) {
            return static_cast<double>(gap) < kGpuCertainGap;
        });
        const auto certain = std::min<int64_t>(small - gaps[i].begin(), std::ssize(found.tokens));
        const auto [a, b] =
            std::mismatch(greedy[i].begin(), greedy[i].begin() + certain, found.tokens.begin());
        compared += a - greedy[i].begin();
        if (found.status == Status::ok && !found.tokens.empty() &&
            a == greedy[i].begin() + certain) {
            continue;
        }
        fmt::print("{}: record {} ({}): differs at token {} of {} certain ones\n", file, i,
                   found.error, a - greedy[i].begin(), certain);
        ++differing;
    }
    fmt::print("{}: {} tokens as the golden ones of {}\n", file, compared, pack);
    return differing;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::vector<std::string> arguments(argv + 1, argv + argc);
        if (arguments.size() == 2 && (arguments[0] == "prompts" || arguments[0] == "reversed")) {
            write_prompts(arguments[1], arguments[0] == "reversed");
            return 0;
        }
        if (arguments.size() == 4 && arguments[0] == "heldout") {
            write_heldout(arguments[1], arguments[2], arguments[3]);
            return 0;
        }
        if (arguments.size() == 3 && arguments[0] == "calibration") {
            write_calibration(arguments[1], arguments[2]);
            return 0;
        }
        if (arguments.size() == 3 && arguments[0] == "nll") {
            fmt::print("{}\n", Golden(data_path("demo_golden.h5"))
                                   .number("/" + arguments[1], "nll_" + arguments[2]));
            return 0;
        }
        const bool golden = !arguments.empty() && arguments[0] == "compare";
        if (arguments.size() < 3 || (!golden && arguments[0] != "same")) {
            fmt::print(
                "usage: golden_files prompts|reversed OUT.h5 | compare PACK FILE... | "
                "same A B...\n");
            return 2;
        }
        int64_t differing = 0;
        for (size_t i = 2; i < arguments.size(); ++i) {
            differing +=
                golden ? compare(arguments[1], arguments[i]) : same(arguments[1], arguments[i]);
        }
        return differing == 0 ? 0 : 1;
    } catch (const std::exception& error) {
        fmt::print("{}\n", error.what());
        return 2;
    }
}
