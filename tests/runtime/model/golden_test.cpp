// SPDX-License-Identifier: Apache-2.0
// The target against values of transformers and exllamav3 (tests/data/demo_golden.h5), on however
// many ranks the binary runs with.
#include "tests/support/golden.h"

#include "tests/support/model_case.h"
#include "tests/support/mpi_main.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

namespace quadrille::test {
namespace {

class GoldenPack : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        folder_ = find_model("demo-" + GetParam());
        if (!folder_) GTEST_SKIP() << "demo-" << GetParam() << " is not in QUADRILLE_TEST_MODELS";
    }
    std::optional<std::filesystem::path> folder_;
    Golden golden_{data_path("demo_golden.h5")};
};

TEST_P(GoldenPack, LastLogitsAgreeForEveryPrompt) {
    ModelCase target(*folder_, session().world(), {.slots = 1, .capacity = 1024, .max_rows = 256});
    const GoldenArray<float> expected = golden_.read<float>("/" + GetParam() + "/last_logits");
    const std::vector<Prompt> prompts = golden_prompts(1);
    const auto vocab = static_cast<size_t>(target.config().vocab_size);
    for (size_t i = 0; i < prompts.size(); ++i) {
        const std::vector<float> logits = target.prefill(0, prompts[i].tokens, 256);
        const std::span<const float> golden(expected.values.data() + i * vocab, vocab);
        EXPECT_LE(largest_difference(logits, golden), kGoldenLogits) << "prompt " << i;
    }
}

TEST_P(GoldenPack, GreedyTokensAreIdentical) {
    const auto expected = golden_.read_ragged<int32_t>("/" + GetParam() + "/greedy");
    ModelCase target(*folder_, session().world(),
                     {.slots = 16, .capacity = 1024, .max_rows = 1024});
    std::vector<Prompt> prompts = golden_prompts(std::ssize(expected[0]));
    const auto results = target.run(std::move(prompts), target.engine_options());
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(results[i].tokens, expected[i]) << "prompt " << i;
    }
}

using GoldenTrace = GoldenPack;

TEST_P(GoldenTrace, AgreesLayerByLayer) {
    const std::string trace = "/" + GetParam() + "/trace";
    const auto which = static_cast<size_t>(golden_.number(trace, "prompt"));
    const std::vector<int32_t> tokens = golden_prompts(1)[which].tokens;
    const auto m = static_cast<int64_t>(tokens.size());
    const ModelConfig config = read_model_config(*folder_);
    std::vector<int64_t> layers;
    for (int64_t l = 0; l < config.num_layers; ++l) layers.push_back(l);
    ModelCase target(*folder_, session().world(), {.slots = 64, .capacity = 1024, .max_rows = 64},
                     layers);
    StepBatch batch(target.backend(), 64, 1);
    batch.clear(true);
    batch.add(0, 0, 0, tokens, Logits::all);
    const std::vector<float> logits = target.forward(batch);
    EXPECT_LE(largest_difference(logits, golden_.read<float>(trace + "/logits").values),
              kGoldenTrace);

    const std::vector<float> hidden = target.download(target.model().hidden());
    EXPECT_LE(largest_difference(hidden, golden_.read<float>(trace + "/final_hidden").values),
              kGoldenTrace);
    const std::vector<float> taps = target.download(target.model().taps());
    const GoldenArray<float> means = golden_.read<float>(trace + "/stream_mean");
    const int64_t h = config.hidden_size;
    ASSERT_EQ(means.shape, (std::vector<int64_t>{config.num_layers, m, h}));
    for (int64_t l = 0; l < config.num_layers; ++l) {
        for (int64_t row = 0; row < m; ++row) {
            const std::span<const float> mine(taps.data() + (row * config.num_layers + l) * h,
                                              static_cast<size_t>(h));
            const std::span<const float> golden(means.values.data() + (l * m + row) * h,
                                                static_cast<size_t>(h));
            ASSERT_LE(largest_difference(mine, golden), kGoldenTrace)
                << "layer " << l << " row " << row;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Bundled, GoldenPack, testing::Values("full-4bpw"), pack_name);
INSTANTIATE_TEST_SUITE_P(Bundled, GoldenTrace, testing::Values("full-4bpw"), pack_name);
// Not part of the project for their size; two ranks are enough for them.
INSTANTIATE_TEST_SUITE_P(Other, GoldenPack, testing::Values("bf16", "tr3-4bpw", "k2"), pack_name);
INSTANTIATE_TEST_SUITE_P(Other, GoldenTrace, testing::Values("tr3-4bpw"), pack_name);

}  // namespace
}  // namespace quadrille::test
