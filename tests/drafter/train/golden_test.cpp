// SPDX-License-Identifier: Apache-2.0
// Losses and gradients of the trained drafter on one batch of other people's making
// (tests/data/make_train_golden.py), what a block may see, and what taps are worth.
#include "tests/support/golden.h"

#include "io/checkpoint/model_config.h"
#include "tests/drafter/train/train_case.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace quadrille::test {
namespace {

constexpr int64_t kFcShare = 8;  // rows of fc's gradient that the file keeps: one of so many

class TrainGolden : public testing::Test {
  protected:
    TrainGolden()
        : golden_(data_path("train_golden.h5")),
          folder_(data_path("models") / "demo-dflash2"),
          config_(read_draft_config(folder_)),
          pass_(read_pass()),
          case_(config_, embedding(), bf16("/head"), pass_),
          weights_(read_parameters(case_.parameters(), Checkpoint(folder_))) {}

    std::vector<float> bf16(const std::string& name) const {
        std::vector<float> values;
        for (const uint16_t bits : golden_.read<uint16_t>(name).values) {
            values.push_back(to_float(BF16{bits}));
        }
        return values;
    }
    // Rows that the batch does not use are zero.
    std::vector<float> embedding() const {
        const std::vector<float> rows = bf16("/embedding");
        const auto ids = golden_.read<int32_t>("/embedding_rows").values;
        const auto h = static_cast<size_t>(config_.hidden_size);
        std::vector<float> table(static_cast<size_t>(config_.vocab_size) * h);
        for (size_t i = 0; i < ids.size(); ++i) {
            std::copy_n(rows.begin() + static_cast<int64_t>(i * h), h,
                        table.begin() + static_cast<int64_t>(static_cast<size_t>(ids[i]) * h));
        }
        return table;
    }
    HostPass read_pass() const {
        const auto ids = golden_.read<int32_t>("/ids");
        const auto mask = golden_.read<float>("/loss_mask").values;
        const auto anchors = golden_.read<int32_t>("/anchors");
        const int64_t length = ids.shape[1];
        const int64_t block = config_.block_size;
        HostPass pass;
        pass.taps = golden_.read<float>("/features").values;
        pass.teacher_hidden = golden_.read<float>("/teacher_hidden").values;
        pass.teacher_logits = golden_.read<float>("/teacher_logits").values;
        pass.teacher_ids = golden_.read<int32_t>("/teacher_ids").values;
        pass.best = 256;
        pass.anchors = anchors.values;
        for (int64_t s = 0; s < anchors.shape[0]; ++s) {
            pass.sequences.push_back({s * length, length, s * anchors.shape[1], anchors.shape[1]});
            for (int32_t p = 0; p < length; ++p) pass.context_positions.push_back(p);
            for (int64_t b = 0; b < anchors.shape[1]; ++b) {
                const int32_t a = anchors.values[static_cast<size_t>(s * anchors.shape[1] + b)];
                for (int32_t k = 0; k < block; ++k) {
                    const auto at = static_cast<size_t>(s * length + a + k);
                    pass.block_positions.push_back(a + k);
                    pass.block_tokens.push_back(
                        k == 0 ? ids.values[at] : static_cast<int32_t>(config_.mask_token_id));
                    if (k == 0) continue;
                    pass.labels.label.push_back(ids.values[at]);
                    pass.labels.before.push_back(ids.values[at - 1]);
                    pass.labels.supervised.push_back(mask[at] > 0 ? 1 : 0);
                }
            }
        }
        return pass;
    }

    // The gradient of `options` against the golden group.
    void expect_gradient(const std::string& group, const LossOptions& options) {
        std::vector<float> gradient(weights_.size());
        const LossReport report = case_.run(options, weights_, gradient);
        EXPECT_NEAR(report.total, golden_.number(group, "loss"), kGoldenLoss) << group;
        for (const Parameter& p : case_.parameters().all()) {
            const std::span<const float> own(gradient.data() + p.offset,
                                             static_cast<size_t>(p.count));
            double norm = 0;
            for (const float g : own) norm += static_cast<double>(g) * static_cast<double>(g);
            const std::string attribute = "norm:" + p.name;
            if (!golden_.has_attribute(group, attribute)) {
                EXPECT_EQ(norm, 0) << group << " " << p.name;
                continue;
            }
            const double expected = golden_.number(group, attribute);
            EXPECT_NEAR(std::sqrt(norm), expected, kGoldenGradient * expected)
                << group << " " << p.name;
            if (golden_.has(group + "/" + p.name)) expect_rows(group, p, own);
        }
    }
    // Relative to the norm of the rows that the file keeps.
    void expect_rows(const std::string& group, const Parameter& p, std::span<const float> own) {
        const auto kept = golden_.read<float>(group + "/" + p.name);
        std::vector<int32_t> rows;
        if (golden_.has(group + "/" + p.name + ".rows")) {
            rows = golden_.read<int32_t>(group + "/" + p.name + ".rows").values;
        } else {
            const int64_t share = p.name == "fc.weight" ? kFcShare : 1;
            for (int64_t r = 0; r < p.rows(); r += share) rows.push_back(static_cast<int32_t>(r));
        }
        double difference = 0, norm = 0;
        for (size_t i = 0; i < kept.values.size(); ++i) {
            const auto cols = static_cast<size_t>(p.cols());
            const auto row = static_cast<size_t>(rows[i / cols]);
            const double expected = static_cast<double>(kept.values[i]);
            const double found = static_cast<double>(own[row * cols + i % cols]);
            difference += (found - expected) * (found - expected);
            norm += expected * expected;
        }
        ASSERT_GT(norm, 0) << group << " " << p.name;
        EXPECT_LT(std::sqrt(difference / norm), kGoldenGradient) << group << " " << p.name;
    }

    LossReport losses() {
        std::vector<float> none;
        return case_.run({}, weights_, none);
    }

    Golden golden_;
    std::filesystem::path folder_;
    DraftConfig config_;
    HostPass pass_;
    TrainCase<float> case_;
    std::vector<float> weights_;
};

TEST_F(TrainGolden, LossesAreThoseOfTheReference) {
    const LossReport report = losses();
    EXPECT_NEAR(report.block_ce, golden_.number("/", "L_block_CE"), kGoldenLoss);
    EXPECT_NEAR(report.kl, golden_.number("/", "L_KL"), kGoldenLoss);
    EXPECT_NEAR(report.selector, golden_.number("/", "L_sel"), kGoldenLoss);
    EXPECT_NEAR(report.anchor, golden_.number("/", "L_anchor"), kGoldenLoss);
    EXPECT_NEAR(report.hidden, golden_.number("/", "L_hid"), kGoldenLoss);
    EXPECT_EQ(report.accept_length(), golden_.number("/", "accept_len"));
    EXPECT_EQ(report.accept_length_by_head(), golden_.number("/", "base_accept_len"));
}

TEST_F(TrainGolden, GradientsAreThoseOfTheReference) {
    const LossOptions none{.block_ce = 0, .kl = 0, .selector = 0, .anchor = 0, .hidden = 0};
    LossOptions kl = none, anchor = none, hidden = none, hard = none;
    kl.kl = anchor.anchor = hidden.hidden = hard.block_ce = hard.selector = 1;
    expect_gradient("/grad_L_KL", kl);
    expect_gradient("/grad_L_anchor", anchor);
    expect_gradient("/grad_L_hid", hidden);
    expect_gradient("/grad_block_ce_plus_sel", hard);
    expect_gradient("/grad_total_card_weights", {});
}

TEST_F(TrainGolden, ContextAtOrBehindTheAnchorIsInvisible) {
    losses();
    const View<const float> seen = case_.hidden();
    const std::vector<float> before(seen.data, seen.data + seen.rows * seen.cols);
    HostPass changed = pass_;
    const auto width = std::ssize(config_.target_layer_ids) * config_.hidden_size;
    const int64_t anchor = pass_.anchors[3];  // of the first sequence, in rising order
    std::fill(changed.taps.begin() + anchor * width,
              changed.taps.begin() + pass_.sequences[0].context_rows * width, 3.0F);
    case_.set(changed);
    losses();
    const auto same = [&](int64_t block) {
        const int64_t count = config_.block_size * config_.hidden_size;
        return std::equal(before.begin() + block * count, before.begin() + (block + 1) * count,
                          case_.hidden().data + block * count);
    };
    for (int64_t b = 0; b <= 3; ++b) EXPECT_TRUE(same(b)) << "block " << b;
    EXPECT_FALSE(same(4)) << "its context was changed";
}

// Some drafts follow from the anchor alone.
TEST_F(TrainGolden, ShuffledTapsAreWorthLittle) {
    const double gain = losses().accept_length_by_head() - 1;
    EXPECT_GT(gain, 0.7);
    HostPass shuffled = pass_;
    const auto width = std::ssize(config_.target_layer_ids) * config_.hidden_size;
    const int64_t rows = pass_.context();
    for (int64_t r = 0; r < rows; ++r) {  // 91 has no factor in common with the rows
        std::copy_n(pass_.taps.begin() + (r * 91 + 40) % rows * width, width,
                    shuffled.taps.begin() + r * width);
    }
    case_.set(shuffled);
    EXPECT_LT(losses().accept_length_by_head() - 1, 0.5 * gain);
}

}  // namespace
}  // namespace quadrille::test
