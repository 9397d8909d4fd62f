// SPDX-License-Identifier: Apache-2.0
// The whole program against the goldens of tests/data/demo_golden.h5, by files:
//   golden_files prompts OUT.h5          its prompts as a prompts file
//   golden_files compare PACK FILE...    generations of these prompts: the tokens of every record
//                                        are the golden ones up to the first gap between the two
//                                        best logits that a GPU's tolerance may turn
// Prints what differs; exit 1 if anything does.
#include "io/generation_reader.h"
#include "io/prompt_writer.h"
#include "io/schema.h"
#include "tests/support/golden.h"
#include "tests/support/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace quadrille;
using namespace quadrille::test;

void write_prompts(const std::string& out) {
    PromptColumns columns;
    columns.text = false;
    PromptWriter writer(out, columns);
    auto prompts = Golden(data_path("demo_golden.h5")).read_ragged<int32_t>("/prompts");
    std::vector<PromptRecord> records(prompts.size());
    for (size_t i = 0; i < records.size(); ++i) {
        records[i].prompt = std::move(prompts[i]);
        writer.add(std::move(records[i]));
    }
    writer.finish();
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
        if (arguments.size() == 2 && arguments[0] == "prompts") {
            write_prompts(arguments[1]);
            return 0;
        }
        if (arguments.size() < 3 || arguments[0] != "compare") {
            fmt::print("usage: golden_files prompts OUT.h5 | compare PACK FILE...\n");
            return 2;
        }
        int64_t differing = 0;
        for (size_t i = 2; i < arguments.size(); ++i)
            differing += compare(arguments[1], arguments[i]);
        return differing == 0 ? 0 : 1;
    } catch (const std::exception& error) {
        fmt::print("{}\n", error.what());
        return 2;
    }
}
