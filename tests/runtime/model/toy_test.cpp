// SPDX-License-Identifier: Apache-2.0
// The target against the numpy reference on the toy checkpoints (tools/reference/README.md): what
// the demo packs do not reach, such as uneven vocabulary blocks, every bit width and codebook,
// padded widths, shards, MTP and vision tensors, and prompts far past a small sparse limit.
#include "kernels/error.h"
#include "tests/support/golden.h"
#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quadrille::test {
namespace {

struct Toy {
    const char* name;
    int most_ranks;
};

void PrintTo(const Toy& toy, std::ostream* out) {
    *out << toy.name;
}

class ToyModel : public testing::TestWithParam<Toy> {
  protected:
    std::filesystem::path folder() const { return data_path("models") / GetParam().name; }
    std::string group() const { return std::string("/") + GetParam().name; }
    // Ranks that the widths do not allow: a usage error, and true.
    bool refused() const {
        if (session().world().size() <= GetParam().most_ranks) return false;
        try {
            ModelCase target(folder(), session().world(), {.slots = 1, .capacity = 64});
            ADD_FAILURE() << "expected an error";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        }
        return true;
    }

    Golden golden_{data_path("toy_golden.h5")};
};

TEST_P(ToyModel, LastLogitsAgreeWhateverTheChunks) {
    if (refused()) return;
    ModelCase target(folder(), session().world(), {.slots = 1, .capacity = 1024, .max_rows = 512});
    const auto prompts = golden_.read_ragged<int32_t>(group() + "/prompts");
    const GoldenArray<float> expected = golden_.read<float>(group() + "/last_logits");
    const auto vocab = static_cast<size_t>(target.config().vocab_size);
    ASSERT_EQ(expected.values.size(), prompts.size() * vocab);
    for (const int32_t chunk : {512, 64}) {
        for (size_t i = 0; i < prompts.size(); ++i) {
            const std::vector<float> logits = target.prefill(0, prompts[i], chunk);
            const std::span<const float> golden(expected.values.data() + i * vocab, vocab);
            EXPECT_LE(largest_difference(logits, golden), kGoldenLogits)
                << "prompt " << i << " in chunks of " << chunk;
        }
    }
}

TEST_P(ToyModel, GreedyTokensAreIdentical) {
    if (refused()) return;
    const auto expected = golden_.read_ragged<int32_t>(group() + "/greedy");
    std::vector<Prompt> prompts;
    for (auto& tokens : golden_.read_ragged<int32_t>(group() + "/prompts")) {
        Prompt prompt;
        prompt.index = std::ssize(prompts);
        prompt.options.max_new_tokens = std::ssize(expected[prompts.size()]);
        prompt.tokens = std::move(tokens);
        prompts.push_back(std::move(prompt));
    }
    ModelCase target(folder(), session().world(), {.slots = 4, .capacity = 1024, .max_rows = 512});
    const auto results = target.run(std::move(prompts), target.engine_options());
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(results[i].tokens, expected[i]) << "prompt " << i;
    }
}

std::string toy_name(const testing::TestParamInfo<Toy>& toy) {
    std::string name = toy.param.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Bundled, ToyModel,
                         testing::Values(Toy{"toy-vocab768", 4}, Toy{"toy-vocab768-topk96", 4},
                                         Toy{"toy-padded", 4}, Toy{"toy-native", 1}),
                         toy_name);

}  // namespace
}  // namespace quadrille::test
