// SPDX-License-Identifier: Apache-2.0
// Gradients in double against differences of the losses, on a tiny drafter: each loss by itself,
// both readings of L_anchor, windows, sequences of different lengths, slots without supervision.
#include "tests/drafter/train/train_case.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace quadrille::test {
namespace {

DraftConfig tiny_config() {
    return {.hidden_size = 16,
            .intermediate_size = 24,
            .num_layers = 2,
            .num_heads = 4,
            .num_kv_heads = 2,
            .head_dim = 8,
            .vocab_size = 40,
            .num_target_layers = 3,
            .rms_norm_eps = 1e-5,
            .rope_theta = 100.0,
            .sliding = {true, false},
            .sliding_window = 7,
            .block_size = 4,
            .mask_token_id = 39,
            .target_layer_ids = {0, 2},
            .conv_group_size = 4,
            .conv_kernel_size = 2,
            .selector_rank = 4,
            .selector_top_k = 12};
}

std::vector<float> draw(size_t count, float scale, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(count);
    for (float& v : values) v = normal(engine);
    return values;
}

HostPass tiny_pass(const DraftConfig& c) {
    HostPass pass;
    pass.sequences = {{0, 12, 0, 2}, {12, 9, 2, 1}};
    pass.anchors = {3, 10, 8};
    pass.best = 6;
    for (const TrainSequence& s : pass.sequences) {
        for (int32_t p = 0; p < s.context_rows; ++p) pass.context_positions.push_back(p);
        for (int64_t b = s.block_begin; b < s.block_begin + s.blocks; ++b) {
            for (int32_t k = 0; k < c.block_size; ++k) {
                pass.block_positions.push_back(pass.anchors[static_cast<size_t>(b)] + k);
                pass.block_tokens.push_back(k == 0 ? static_cast<int32_t>(b) : 39);
            }
        }
    }
    const auto slots = static_cast<size_t>(pass.blocks() * (c.block_size - 1));
    for (size_t i = 0; i < slots; ++i) {
        pass.labels.label.push_back(static_cast<int32_t>(i * 7 % 39));
        pass.labels.before.push_back(static_cast<int32_t>(i * 5 % 39));
        pass.labels.supervised.push_back(i == 5 ? 0 : 1);
        for (int32_t j = 0; j < 6; ++j) {
            pass.teacher_ids.push_back(static_cast<int32_t>((i + 3 * static_cast<size_t>(j)) % 39));
        }
    }
    pass.taps = draw(21 * 32, 1, 1);
    pass.teacher_hidden = draw(slots * 16, 1, 2);
    pass.teacher_logits = draw(slots * 6, 1, 3);
    return pass;
}

struct LossCase {
    std::string name;
    LossOptions options;
};

class Differences : public testing::TestWithParam<LossCase> {};

TEST_P(Differences, AreTheGradient) {
    const LossOptions& options = GetParam().options;
    const DraftConfig config = tiny_config();
    TrainCase<double> drafter(config, draw(40 * 16, 1, 4), draw(40 * 16, 0.3F, 5),
                              tiny_pass(config));
    const auto count = static_cast<size_t>(drafter.parameters().count());
    const std::vector<float> drawn = draw(count, 0.25F, 6);
    const std::vector<float> other = draw(count, 0.25F, 7);
    std::vector<double> weights(drawn.begin(), drawn.end());
    std::vector<double> frozen;
    if (options.reading == AnchorLoss::drafter) frozen.assign(other.begin(), other.end());
    std::vector<double> gradient(count), none;
    drafter.run(options, weights, gradient, frozen);
    for (const Parameter& p : drafter.parameters().all()) {
        // Along a random direction within the parameter.
        const std::vector<float> along = draw(static_cast<size_t>(p.count), 1, 8);
        const auto first = static_cast<size_t>(p.offset);
        double expected = 0, size = 0;
        for (size_t i = 0; i < along.size(); ++i) {
            expected += gradient[first + i] * static_cast<double>(along[i]);
            size += gradient[first + i] * gradient[first + i];
        }
        const auto loss_at = [&](double step) {
            std::vector<double> moved = weights;
            for (size_t i = 0; i < along.size(); ++i) {
                moved[first + i] += step * static_cast<double>(along[i]);
            }
            return drafter.run(options, moved, none, frozen).total;
        };
        constexpr double kStep = 1e-5;
        const double found = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
        EXPECT_NEAR(found, expected, kFiniteDifference * (std::sqrt(size) + 1e-3)) << p.name;
    }
}

LossOptions only(double LossOptions::*loss) {
    LossOptions options{.block_ce = 0, .kl = 0, .selector = 0, .anchor = 0, .hidden = 0};
    options.*loss = 1;
    return options;
}

LossOptions trust() {
    LossOptions options = only(&LossOptions::anchor);
    options.reading = AnchorLoss::drafter;
    return options;
}

INSTANTIATE_TEST_SUITE_P(
    Losses, Differences,
    testing::Values(LossCase{"block_ce", only(&LossOptions::block_ce)},
                    LossCase{"kl", only(&LossOptions::kl)},
                    LossCase{"selector", only(&LossOptions::selector)},
                    LossCase{"anchor_first_slot", only(&LossOptions::anchor)},
                    LossCase{"anchor_drafter", trust()},
                    LossCase{"hidden", only(&LossOptions::hidden)}, LossCase{"card", LossOptions{}},
                    LossCase{"exponential",
                             LossOptions{.decay = SlotDecay::exponential, .decay_value = 4}}),
    [](const auto& one) { return one.param.name; });

// Two slots a block: q~ = (1 - a) q + a; w = (q1 + q1 q2, q1 q2).
TEST(SlotWeights, AreThoseOfTheirFormulas) {
    const std::vector<double> q = {0.5, 0.25, 0.75, 1.0};
    LossOptions options;
    EXPECT_EQ(slot_weights(options, q, 2), (std::vector<double>{1, 0.85, 1, 0.85}));
    options = {.decay = SlotDecay::exponential, .decay_value = 4};
    EXPECT_EQ(slot_weights(options, q, 2)[1], std::exp(-0.25));
    options = {.decay = SlotDecay::dpace, .decay_value = 0.5};
    EXPECT_EQ(slot_weights(options, q, 2),
              (std::vector<double>{0.75 + 0.75 * 0.625, 0.75 * 0.625, 0.875 + 0.875, 0.875}));
}

}  // namespace
}  // namespace quadrille::test
